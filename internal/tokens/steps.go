package tokens

// loadText reads the steps before and after the model, which determine the family: byte-level, where ByteLevel maps
// each byte to a character, or SentencePiece's, which writes ▁ for a space.
func (t *Tokenizer) loadText(f *file) error {
	normalizers := flattened(f.Normalizer, func(s *fileStep) []fileStep { return s.Normalizers })
	cuts := flattened(f.PreTokenizer, func(s *fileStep) []fileStep { return s.PreTokenizers })
	for _, cut := range cuts {
		if cut.Type == "ByteLevel" {
			return t.loadByteLevel(f, normalizers, cuts)
		}
	}
	return t.loadSentence(f, normalizers, cuts)
}

// flattened returns a step, which is nil for none, as the list of steps that it consists of.
func flattened(s *fileStep, parts func(*fileStep) []fileStep) (steps []fileStep) {
	switch {
	case s == nil:
	case s.Type == "Sequence":
		for _, part := range parts(s) {
			steps = append(steps, flattened(&part, parts)...)
		}
	default:
		steps = []fileStep{*s}
	}
	return steps
}

// loadByteLevel reads the steps of a byte-level family: at most NFC; the Splits of a known pattern, or ByteLevel's own.
func (t *Tokenizer) loadByteLevel(f *file, normalizers, cuts []fileStep) error {
	for _, n := range normalizers {
		if n.Type != "NFC" {
			return unsupported("normalizer.type %q", n.Type)
		}
		t.nfc = true
	}
	if d := f.Decoder; d != nil && d.Type != "ByteLevel" {
		return unsupported("decoder.type %q", d.Type)
	}
	if f.Model.ByteFallback {
		return unsupported("model.byte_fallback with a ByteLevel pre_tokenizer")
	}
	splits, last := cuts[:len(cuts)-1], &cuts[len(cuts)-1]
	if last.Type != "ByteLevel" {
		return unsupported("pre_tokenizer of type %q after ByteLevel", last.Type)
	}
	if last.AddPrefixSpace != nil && *last.AddPrefixSpace {
		return unsupported("pre_tokenizer.add_prefix_space")
	}
	if own := last.UseRegex == nil || *last.UseRegex; own != (len(splits) == 0) {
		return unsupported("pre_tokenizer.use_regex %t with %d patterns before it", own, len(splits))
	}
	sources := []string{gpt2Source}
	if len(splits) > 0 {
		sources = nil
	}
	for _, s := range splits {
		if s.Type != "Split" || s.Pattern.String != nil {
			return unsupported("pre_tokenizer of type %q is not a Split by a regular expression", s.Type)
		}
		// A pattern of one Split matches every character, so keeping or dropping the pieces between matches is the
		// same.
		removed := s.Behavior == "Removed" && s.Invert && len(splits) == 1
		if isolated := s.Behavior == "Isolated" && !s.Invert; !isolated && !removed {
			return unsupported("pre_tokenizer Split with behavior %q, invert %t", s.Behavior, s.Invert)
		}
		sources = append(sources, s.Pattern.Regex)
	}
	var known bool
	if t.pattern, known = patternOf(sources); !known {
		return unsupported("pre_tokenizer Split pattern %q is not a known one", sources)
	}
	return nil
}

// lead is the set of texts that get a leading ▁.
type lead uint8

const (
	leadNone  lead = iota
	leadText       // normalizer Prepend: any text between added tokens
	leadWord       // Metaspace, always: the same, unless it begins with a space
	leadFirst      // Metaspace, first: only at the very beginning of the input, unless it begins with a space
)

// loadSentence reads the steps of SentencePiece's family: spaces become ▁ by a normaliser (Gemma; Llama 2 and Mistral
// 7B, which prepend another) or by Metaspace (the same two in their younger form).
func (t *Tokenizer) loadSentence(f *file, normalizers, cuts []fileStep) error {
	s := new(sentence)
	for i, n := range normalizers {
		switch {
		case n.Type == "Prepend" && n.Prepend == spaceMark && i == 0 && len(normalizers) == 2:
			s.lead = leadText
		case n.Type == "Replace" && n.Pattern.String != nil && *n.Pattern.String == " " && n.Content == spaceMark && i == len(normalizers)-1:
			s.early = true
		default:
			return unsupported("normalizer.type %q, number %d of %d, without a ByteLevel pre_tokenizer", n.Type, i+1, len(normalizers))
		}
	}
	for i, c := range cuts {
		metaspace := c.Type == "Metaspace" && c.Replacement == spaceMark && i == 0 && !s.early
		// After the normaliser no space is left to split at.
		idle := c.Type == "Split" && c.Pattern.String != nil && *c.Pattern.String == " " && s.early
		switch {
		case metaspace:
			if err := s.loadMetaspace(&c); err != nil {
				return err
			}
		case !idle:
			return unsupported("pre_tokenizer of type %q without ByteLevel", c.Type)
		}
	}
	if !s.early && len(cuts) == 0 {
		return unsupported("pre_tokenizer is absent, and no normalizer writes ▁ for a space")
	}
	m := &f.Model
	switch {
	case !m.ByteFallback:
		return unsupported("model.byte_fallback false without a ByteLevel pre_tokenizer")
	case m.IgnoreMerges:
		return unsupported("model.ignore_merges without a ByteLevel pre_tokenizer")
	}
	for _, d := range flattened(f.Decoder, func(s *fileStep) []fileStep { return s.Decoders }) {
		switch d.Type {
		case "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace":
		default:
			return unsupported("decoder.type %q", d.Type)
		}
	}
	t.sentence = s
	return nil
}

func (s *sentence) loadMetaspace(c *fileStep) error {
	schemes := map[string]lead{"": leadWord, "always": leadWord, "first": leadFirst, "never": leadNone}
	scheme, known := schemes[c.PrependScheme]
	if !known {
		return unsupported("pre_tokenizer.prepend_scheme %q", c.PrependScheme)
	}
	if c.AddPrefixSpace != nil && *c.AddPrefixSpace != (scheme != leadNone) {
		return unsupported("pre_tokenizer.add_prefix_space %t with prepend_scheme %q", *c.AddPrefixSpace, c.PrependScheme)
	}
	s.lead = scheme
	s.apart = c.Split == nil || *c.Split
	return nil
}

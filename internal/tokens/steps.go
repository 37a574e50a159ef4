package tokens

// loadText reads the steps before and after the model.
func (t *Tokenizer) loadText(f *file) error {
	if n := f.Normalizer; n != nil {
		if n.Type == "Sequence" && len(n.Normalizers) == 1 {
			n = &n.Normalizers[0]
		}
		switch {
		case n.Type == "NFC":
			t.nfc = true
		case n.Type == "Sequence" && len(n.Normalizers) == 0:
		default:
			return unsupported("normalizer.type %q", n.Type)
		}
	}
	if d := f.Decoder; d != nil && d.Type != "ByteLevel" {
		return unsupported("decoder.type %q", d.Type)
	}
	if f.PreTokenizer == nil {
		return unsupported("pre_tokenizer is absent")
	}
	steps := []fileStep{*f.PreTokenizer}
	if f.PreTokenizer.Type == "Sequence" {
		steps = f.PreTokenizer.PreTokenizers
	}
	last := len(steps) - 1
	if last < 0 || last > 1 || steps[last].Type != "ByteLevel" {
		return unsupported("pre_tokenizer is not ByteLevel, alone or after one Split")
	}
	if steps[last].AddPrefixSpace {
		return unsupported("pre_tokenizer.add_prefix_space")
	}
	if own := steps[last].UseRegex == nil || *steps[last].UseRegex; own != (last == 0) {
		return unsupported("pre_tokenizer.use_regex %t with %d patterns before it", own, last)
	}
	if last == 0 {
		t.pattern = gpt2
		return nil
	}
	return t.loadSplit(&steps[0])
}

func (t *Tokenizer) loadSplit(s *fileStep) error {
	if s.Type != "Split" || s.Pattern.String != nil {
		return unsupported("pre_tokenizer of type %q is not a Split by a regular expression", s.Type)
	}
	// The known patterns match every character, so to keep the pieces between matches or to drop them is the same.
	if kept := s.Behavior == "Isolated" && !s.Invert || s.Behavior == "Removed" && s.Invert; !kept {
		return unsupported("pre_tokenizer Split with behavior %q, invert %t", s.Behavior, s.Invert)
	}
	var known bool
	if t.pattern, known = patternOf(s.Pattern.Regex); !known {
		return unsupported("pre_tokenizer Split pattern %q is not a known one", s.Pattern.Regex)
	}
	return nil
}

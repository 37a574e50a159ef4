package tokens

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// config is the part of Hugging Face's tokenizer_config.json that affects encoding.
type config struct {
	Class  string               `json:"tokenizer_class"`
	AddBOS *bool                `json:"add_bos_token"`
	AddEOS *bool                `json:"add_eos_token"`
	BOS    configToken          `json:"bos_token"`
	EOS    configToken          `json:"eos_token"`
	Added  map[string]fileAdded `json:"added_tokens_decoder"` // by id
	Tekken bool                 `json:"fix_mistral_regex"`    // the file's first Split has a wrong pattern
}

// configToken is a token's content: null, a string, or an object with the string as its content.
type configToken string

// UnmarshalJSON implements json.Unmarshaler.
func (t *configToken) UnmarshalJSON(data []byte) error {
	var whole struct{ Content string }
	if json.Unmarshal(data, &whole) == nil {
		*t = configToken(whole.Content)
		return nil
	}
	return json.Unmarshal(data, (*string)(t))
}

// ownAffixes are the tokenizer classes of transformers 4 that add the begin and end of a sequence by add_bos_token
// (default: true) and add_eos_token (default: false), overriding tokenizer.json's post-processor, with the two tokens'
// defaults. All other classes follow the post-processor.
var ownAffixes = map[string][2]configToken{
	"LlamaTokenizer":         {"<s>", "</s>"},
	"LlamaTokenizerFast":     {"<s>", "</s>"},
	"CodeLlamaTokenizer":     {"<s>", "</s>"},
	"CodeLlamaTokenizerFast": {"<s>", "</s>"},
	"GemmaTokenizer":         {"<bos>", "<eos>"},
	"GemmaTokenizerFast":     {"<bos>", "<eos>"},
}

// loadConfig applies tokenizer_config.json to the added tokens of tokenizer.json.
func (f *file) loadConfig(data []byte) error {
	if data == nil {
		return nil
	}
	if err := json.Unmarshal(data, &f.config); err != nil {
		return fmt.Errorf("tokens: read tokenizer_config.json: %w", err)
	}
	if p := f.PreTokenizer; f.config.Tekken && p != nil && len(p.PreTokenizers) > 0 && p.PreTokenizers[0].Type == "Split" {
		p.PreTokenizers[0].Pattern.Regex = tekkenSource
	}
	for key, token := range f.config.Added {
		id, err := strconv.ParseUint(key, 10, 32)
		if err != nil {
			return unsupported("tokenizer_config.json: added_tokens_decoder has the key %q", key)
		}
		token.ID = uint32(id)
		same := func(a fileAdded) bool { return a.ID == token.ID && a.Content == token.Content }
		if at := slices.IndexFunc(f.AddedTokens, same); at >= 0 {
			f.AddedTokens[at] = token
		} else {
			f.AddedTokens = append(f.AddedTokens, token)
		}
	}
	return nil
}

// loadAffixes finds the tokens around a prompt that is encoded with add_special_tokens.
func (t *Tokenizer) loadAffixes(f *file) error {
	defaults, own := ownAffixes[f.config.Class]
	if !own {
		return t.postProcess(f.PostProcessor)
	}
	for _, side := range []struct {
		add            *bool
		byDefault      bool
		token, instead configToken
		name           string
		ids            *[]uint32
	}{
		{f.config.AddBOS, true, f.config.BOS, defaults[0], "bos_token", &t.prefix},
		{f.config.AddEOS, false, f.config.EOS, defaults[1], "eos_token", &t.suffix},
	} {
		if side.add == nil && !side.byDefault || side.add != nil && !*side.add {
			continue
		}
		if side.token == "" {
			side.token = side.instead
		}
		id, ok := t.ids[string(side.token)]
		if !ok {
			return unsupported("tokenizer_config.json: %s %q is no added token", side.name, side.token)
		}
		*side.ids = []uint32{id}
	}
	return nil
}

// postProcess applies a step of tokenizer.json's post_processor.
func (t *Tokenizer) postProcess(p *fileProcessor) error {
	switch {
	case p == nil || p.Type == "ByteLevel": // which changes offsets only
		return nil
	case p.Type == "Sequence":
		for i := range p.Processors {
			if err := t.postProcess(&p.Processors[i]); err != nil {
				return err
			}
		}
		return nil
	case p.Type != "TemplateProcessing":
		return unsupported("post_processor.type %q", p.Type)
	}
	var sides [2][]uint32 // before and after the text
	texts := 0
	for i, part := range p.Single {
		switch {
		case part.Sequence != nil && part.SpecialToken == nil && texts == 0:
			texts++
		case part.SpecialToken != nil && part.Sequence == nil:
			token, ok := p.SpecialTokens[part.SpecialToken.ID]
			if !ok || slices.ContainsFunc(token.IDs, func(id uint32) bool { return id > maxTokenID }) {
				return unsupported("post_processor.single[%d] names %q, which special_tokens lacks", i, part.SpecialToken.ID)
			}
			sides[texts] = append(sides[texts], token.IDs...)
		default:
			return unsupported("post_processor.single[%d] is neither one special token nor the one text", i)
		}
	}
	if texts == 0 {
		return unsupported("post_processor.single has no text")
	}
	t.prefix = append(sides[0], t.prefix...)
	t.suffix = append(t.suffix, sides[1]...)
	return nil
}

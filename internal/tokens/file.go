package tokens

import (
	"encoding/json"
	"fmt"
	"strings"
)

// file is the part of Hugging Face's tokenizer.json that affects encoding. Engines set truncation and padding for
// each call.
type file struct {
	AddedTokens  []fileAdded `json:"added_tokens"`
	Normalizer   *fileStep   `json:"normalizer"`
	PreTokenizer *fileStep   `json:"pre_tokenizer"`
	Decoder      *fileStep   `json:"decoder"`
	Model        fileModel   `json:"model"`

	PostProcessor *fileProcessor `json:"post_processor"`

	config config
}

type fileAdded struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type fileStep struct {
	Type           string     `json:"type"`
	PreTokenizers  []fileStep `json:"pretokenizers"`
	Normalizers    []fileStep `json:"normalizers"`
	Decoders       []fileStep `json:"decoders"`
	AddPrefixSpace *bool      `json:"add_prefix_space"`
	UseRegex       *bool      `json:"use_regex"`
	Behavior       string     `json:"behavior"`
	Invert         bool       `json:"invert"`
	Prepend        string     `json:"prepend"`
	Content        string     `json:"content"`
	Replacement    string     `json:"replacement"`
	PrependScheme  string     `json:"prepend_scheme"`
	Split          *bool      `json:"split"`
	Pattern        struct {
		Regex  string
		String *string
	} `json:"pattern"`
}

// fileProcessor adds the tokens before and after a prompt.
type fileProcessor struct {
	Type       string          `json:"type"`
	Processors []fileProcessor `json:"processors"`
	Single     []struct {
		SpecialToken *struct{ ID string }
		Sequence     *struct{ ID string }
	} `json:"single"`
	SpecialTokens map[string]struct{ IDs []uint32 } `json:"special_tokens"`
}

type fileModel struct {
	Type         string            `json:"type"`
	Dropout      *float64          `json:"dropout"`
	Prefix       string            `json:"continuing_subword_prefix"`
	Suffix       string            `json:"end_of_word_suffix"`
	ByteFallback bool              `json:"byte_fallback"`
	IgnoreMerges bool              `json:"ignore_merges"`
	Vocab        map[string]uint32 `json:"vocab"`
	Merges       fileMerges        `json:"merges"`
}

// fileMerges reads merges in both of their forms: "a b" and ["a","b"].
type fileMerges [][2]string

// UnmarshalJSON implements json.Unmarshaler.
func (ms *fileMerges) UnmarshalJSON(data []byte) error {
	var joined []string
	if json.Unmarshal(data, &joined) == nil {
		*ms = make(fileMerges, len(joined))
		for i, j := range joined {
			left, right, ok := strings.Cut(j, " ")
			if !ok || strings.Contains(right, " ") {
				return fmt.Errorf("model.merges[%d] is not two tokens", i)
			}
			(*ms)[i] = [2]string{left, right}
		}
		return nil
	}
	var pairs [][]string
	if err := json.Unmarshal(data, &pairs); err != nil {
		return err
	}
	*ms = make(fileMerges, len(pairs))
	for i, p := range pairs {
		if len(p) != 2 {
			return fmt.Errorf("model.merges[%d] is not two tokens", i)
		}
		(*ms)[i] = [2]string{p[0], p[1]}
	}
	return nil
}

package models

import (
	"cmp"

	"github.com/tandem-pd/tandem/internal/openai"
)

// VocabSize is the bound of the model's token ids, from the best source there is: the engine, the model's config.json, its
// tokenizer, which may have fewer; 0 unknown.
func (c *Card) VocabSize(l *Language) int {
	if c.vocab > 0 || l == nil {
		return c.vocab
	}
	return cmp.Or(l.vocab, l.tokenizer.Tokenizer().VocabSize())
}

// CheckIDs returns the 400 for a request that names token ids outside of the vocabulary, nil for any other. vLLM 0.32 compares
// them itself, SGLang 0.5.23 not all; nor does it keep clients from files of its machine. If the
// vocabulary's size is unknown, a request to SGLang with others is refused.
func (c *Card) CheckIDs(req *openai.Request, l *Language) *openai.Error {
	if !c.checks && req.NamesFiles() {
		return openai.BadRequest("messages", "messages: images, audio and video come from a URL of http or https, or in the body as a data: URL")
	}
	if size := c.VocabSize(l); size > 0 {
		return req.OutsideVocabulary(size)
	}
	param := req.Unchecked()
	if c.checks || param == "" {
		return nil
	}
	return openai.BadRequest(param, "%s: the size of this model's vocabulary is not known, so that it cannot be checked, "+
		"and its engine does not check it; "+
		"the operator can give the gateway the model's tokenizer", param)
}

// reportUnsized logs, once a model, that its vocabulary's size is not known.
func (l *Library) reportUnsized(model string) {
	c, _ := CardOf(l.roster, model)
	if l.unsized[model] || c.Engine == "" || c.VocabSize(l.Of(model)) > 0 {
		return
	}
	l.unsized[model] = true
	if c.checks {
		l.log.Info("vocabulary size unknown; token ids are checked by the engine alone", "model", model, "engine", c.Engine)
	} else {
		l.log.Warn("vocabulary size unknown; requests with token ids are refused (set --tokenizer)", "model", model, "engine", c.Engine)
	}
}

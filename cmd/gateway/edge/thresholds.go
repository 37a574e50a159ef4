package edge

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"math"
	"net/http"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/router/replica"
)

// BusyThreshold is the loads above which a model's workers are not chosen, in the form of /busy_threshold; nil for
// none.
type BusyThreshold struct {
	Model         string   `json:"model"`
	DecodeBlocks  *float64 `json:"active_decode_blocks_threshold"`
	PrefillTokens *int     `json:"active_prefill_tokens_threshold"`
}

// thresholds lists the thresholds of each model.
func (s *Server) thresholds(c *fiber.Ctx) error {
	all := s.cat.Thresholds()
	if all == nil {
		all = []BusyThreshold{}
	}
	return writeJSON(c, http.StatusOK, struct {
		Thresholds []BusyThreshold `json:"thresholds"`
	}{all})
}

// setThresholds changes the thresholds of the body's model, and answers with the result. An absent field stays, null
// removes it.
func (s *Server) setThresholds(c *fiber.Ctx) error {
	body, err := s.readBody(c.Context(), maxAdminBytes)
	if err != nil {
		return err
	}
	asked, e := readThreshold(body, s.cat.Thresholds())
	var answer replica.Storage
	if e == nil {
		answer, e = s.cat.SetThreshold(asked)
	}
	s.administered(c.Context(), "busy_threshold", e, slog.String("model", asked.Model[:min(len(asked.Model), 128)]),
		slog.String("kept", string(answer)))
	if e != nil {
		return e
	}
	return writeJSON(c, http.StatusOK, struct {
		BusyThreshold
		Kept replica.Storage `json:"kept"`
	}{asked, answer})
}

// readThreshold applies a body to the current thresholds.
func readThreshold(raw []byte, all []BusyThreshold) (BusyThreshold, *openai.Error) {
	var body struct {
		Model         string          `json:"model"`
		DecodeBlocks  json.RawMessage `json:"active_decode_blocks_threshold"`
		PrefillTokens json.RawMessage `json:"active_prefill_tokens_threshold"`
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || d.More() {
		return BusyThreshold{}, openai.BadRequest("",
			"the body is not one object of model, active_decode_blocks_threshold and active_prefill_tokens_threshold")
	}
	if body.Model == "" {
		return BusyThreshold{}, openai.BadRequest("model", "model is missing")
	}
	out := BusyThreshold{Model: body.Model}
	known := false
	for _, t := range all {
		if t.Model == body.Model {
			out, known = t, true
		}
	}
	if !known {
		return out, openai.NotFoundModel(body.Model)
	}
	if body.DecodeBlocks != nil {
		out.DecodeBlocks = nil
		err := json.Unmarshal(body.DecodeBlocks, &out.DecodeBlocks)
		if share := out.DecodeBlocks; err != nil || share != nil && !(*share > 0 && *share <= 1) {
			return out, openai.BadRequest("active_decode_blocks_threshold",
				"active_decode_blocks_threshold is a share above 0 and at most 1, or null for none")
		}
	}
	if body.PrefillTokens != nil {
		out.PrefillTokens = nil
		err := json.Unmarshal(body.PrefillTokens, &out.PrefillTokens)
		if n := out.PrefillTokens; err != nil || n != nil && (*n < 1 || *n > math.MaxInt32) {
			return out, openai.BadRequest("active_prefill_tokens_threshold",
				"active_prefill_tokens_threshold is a number of tokens from 1, or null for none")
		}
	}
	return out, nil
}

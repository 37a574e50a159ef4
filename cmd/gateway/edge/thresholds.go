package edge

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"math"
	"net/http"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools/kept"
)

// BusyThreshold is the loads above which a model's workers are out of the choice, as /busy_threshold takes and
// returns them; nil for none.
type BusyThreshold struct {
	Model         string   `json:"model"`
	DecodeBlocks  *float64 `json:"active_decode_blocks_threshold"`
	PrefillTokens *int     `json:"active_prefill_tokens_threshold"`
}

// thresholds lists those of each model.
func (s *Server) thresholds(c *fiber.Ctx) error {
	all := s.cat.Thresholds()
	if all == nil {
		all = []BusyThreshold{}
	}
	return writeJSON(c, http.StatusOK, struct {
		Thresholds []BusyThreshold `json:"thresholds"`
	}{all})
}

// setThresholds changes those of the model that the body names, and answers with what is then in force. A field that
// is left out stays, null takes it away.
func (s *Server) setThresholds(c *fiber.Ctx) error {
	body, err := s.readBody(c.Context(), maxAdminBytes)
	if err != nil {
		return err
	}
	asked, e := readThreshold(body, s.cat.Thresholds())
	var answer kept.Answer
	if e == nil {
		answer, e = s.cat.SetThreshold(asked)
	}
	s.administered(c.Context(), "busy_threshold", e, slog.String("model", asked.Model[:min(len(asked.Model), 128)]), slog.String("kept", string(answer)))
	if e != nil {
		return e
	}
	return writeJSON(c, http.StatusOK, struct {
		BusyThreshold
		Kept kept.Answer `json:"kept"`
	}{asked, answer})
}

// readThreshold reads a body against what is in force.
func readThreshold(body []byte, all []BusyThreshold) (BusyThreshold, *openai.Error) {
	var said struct {
		Model         string          `json:"model"`
		DecodeBlocks  json.RawMessage `json:"active_decode_blocks_threshold"`
		PrefillTokens json.RawMessage `json:"active_prefill_tokens_threshold"`
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&said); err != nil || d.More() {
		return BusyThreshold{}, openai.BadRequest("", "the body is not one object of model, active_decode_blocks_threshold and active_prefill_tokens_threshold")
	}
	if said.Model == "" {
		return BusyThreshold{}, openai.BadRequest("model", "model is missing")
	}
	out := BusyThreshold{Model: said.Model}
	known := false
	for _, t := range all {
		if t.Model == said.Model {
			out, known = t, true
		}
	}
	if !known {
		return out, openai.NotFoundModel(said.Model)
	}
	if said.DecodeBlocks != nil {
		out.DecodeBlocks = nil
		if err := json.Unmarshal(said.DecodeBlocks, &out.DecodeBlocks); err != nil || out.DecodeBlocks != nil && !(*out.DecodeBlocks > 0 && *out.DecodeBlocks <= 1) {
			return out, openai.BadRequest("active_decode_blocks_threshold", "active_decode_blocks_threshold is a share above 0 and at most 1, or null for none")
		}
	}
	if said.PrefillTokens != nil {
		out.PrefillTokens = nil
		if err := json.Unmarshal(said.PrefillTokens, &out.PrefillTokens); err != nil || out.PrefillTokens != nil && (*out.PrefillTokens < 1 || *out.PrefillTokens > math.MaxInt32) {
			return out, openai.BadRequest("active_prefill_tokens_threshold", "active_prefill_tokens_threshold is a number of tokens from 1, or null for none")
		}
	}
	return out, nil
}

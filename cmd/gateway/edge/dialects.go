package edge

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/cmd/gateway/dialect"
	"github.com/tandem-pd/tandem/internal/openai"
)

const (
	messagesPath  = "/v1/messages"
	responsesPath = "/v1/responses"
	// headerAnthropicID is where Anthropic's libraries read the request's id.
	headerAnthropicID = "Request-Id"
	// headerAnthropic is in every request of Anthropic's libraries.
	headerAnthropic = "Anthropic-Version"
)

// converter makes a chat of a dialect's request; see [dialect.Messages].
type converter func(body []byte, o dialect.Options) (*dialect.Request, error)

// dialectRoutes returns the routes of the dialects that become a chat.
func (s *Server) dialectRoutes() []route {
	serve := func(to converter) fiber.Handler {
		return func(c *fiber.Ctx) error { return s.generate(c, openai.Chat, to) }
	}
	limit := s.cfg.MaxBodyBytes
	count := func(c *fiber.Ctx) error { return s.generate(c, openai.Tokenize, countTokens) }
	return []route{
		{http.MethodPost, messagesPath + "/count_tokens", "count_tokens", clients, limit, count},
		{http.MethodPost, messagesPath, "messages", clients, limit, serve(dialect.Messages)},
		{http.MethodPost, responsesPath, "responses", clients, limit, serve(dialect.Responses)},
		{http.MethodPost, responsesPath + "/compact", "responses", clients, limit, serve(dialect.Compact)},
		{http.MethodGet, responsesPath + "/:id", "responses", clients, 0, noResponse},
		{http.MethodDelete, responsesPath + "/:id", "responses", clients, 0, noResponse},
		{http.MethodGet, responsesPath + "/:id/input_items", "responses", clients, 0, noResponse},
		{http.MethodPost, responsesPath + "/:id/cancel", "responses", clients, limit, noResponse},
	}
}

// noResponse is the 404 for a response that another API would have stored.
func noResponse(*fiber.Ctx) error {
	return &openai.Error{Status: http.StatusNotFound, Code: "response_not_found", Param: "response_id",
		Message: "responses are not stored here: send the whole conversation in input, with store: false"}
}

// convert replaces r's body, in the budget too, by the chat that it becomes.
func (s *Server) convert(to converter, raw []byte, r *request) (*dialect.Request, error) {
	converted, err := to(raw, dialect.Options{ID: plainID(r.id), MaxBytes: s.cfg.MaxBodyBytes, OneSystem: s.cat.OneSystem, Now: time.Now().Unix()})
	if err != nil {
		return nil, err
	}
	if !s.bodies.replace(r, cap(converted.Chat)) {
		return nil, s.bodies.exhausted()
	}
	return converted, nil
}

// plainID returns a request's id, or a digest of it where it has bytes that JSON or a URL would escape.
func plainID(id string) string {
	for _, c := range []byte(id) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			digest := sha256.Sum256([]byte(id))
			return hex.EncodeToString(digest[:16])
		}
	}
	return id
}

// anthropic reports whether a request's errors have Anthropic's form: by its path, or its library's header.
func anthropic(ctx *fasthttp.RequestCtx) bool {
	return bytes.HasPrefix(ctx.Path(), []byte(messagesPath)) || has(&ctx.Request.Header, headerAnthropic)
}

// countTokens converts a request of Messages, which is tokenized instead of answered.
func countTokens(body []byte, o dialect.Options) (*dialect.Request, error) {
	r, err := dialect.MessagesPrompt(body, o)
	if err != nil {
		return nil, err
	}
	r.Answer, r.Stream = tokenCount{r.Answer}, false
	return r, nil
}

// tokenCount converts the answer to a request to tokenize.
type tokenCount struct{ dialect.Answer }

// Whole implements [dialect.Answer].
func (tokenCount) Whole(dst, body []byte) ([]byte, error) {
	var answer struct{ Count *int }
	if err := json.Unmarshal(body, &answer); err != nil || answer.Count == nil {
		return nil, openai.BadGateway("invalid_answer", "the worker's answer cannot be read as a count of tokens")
	}
	return fmt.Appendf(dst, `{"input_tokens":%d}`, *answer.Count), nil
}

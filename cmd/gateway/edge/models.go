package edge

import (
	"net/http"
	"net/url"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-pd/tandem/internal/openai"
)

// models lists the served models: as Anthropic does for its libraries, else as OpenAI, with Codex's own list next to it
// for Codex.
func (s *Server) models(c *fiber.Ctx) error {
	all := s.cat.Models()
	switch {
	case has(&c.Context().Request.Header, headerAnthropic):
		return writeJSON(c, http.StatusOK, anthropicModels(all))
	case c.Context().QueryArgs().Has("client_version"):
		return writeJSON(c, http.StatusOK, struct {
			openai.ModelList
			Models []codexModel `json:"models"`
		}{listOf(all), codexModels(all)})
	}
	return writeJSON(c, http.StatusOK, listOf(all))
}

func listOf(all []openai.Model) openai.ModelList {
	return openai.ModelList{Object: "list", Data: append([]openai.Model{}, all...)}
}

// model describes one model.
func (s *Server) model(c *fiber.Ctx) error {
	id, err := url.PathUnescape(c.Params("*"))
	if err != nil {
		return openai.BadRequest("model", "the model's name in the path is not escaped properly")
	}
	for _, m := range s.cat.Models() {
		if m.ID != id {
			continue
		}
		if has(&c.Context().Request.Header, headerAnthropic) {
			return writeJSON(c, http.StatusOK, anthropicModels([]openai.Model{m}).Data[0])
		}
		return writeJSON(c, http.StatusOK, m)
	}
	return openai.NotFoundModel(id)
}

// anthropicModel is a model as Anthropic's API lists it (anthropic-sdk-python, types/model_info.py).
type anthropicModel struct {
	Type           string `json:"type"`
	ID             string `json:"id"`
	DisplayName    string `json:"display_name"`
	CreatedAt      string `json:"created_at"`
	MaxInputTokens int    `json:"max_input_tokens,omitempty"`
	MaxTokens      int    `json:"max_tokens,omitempty"`
}

// anthropicList is a page that holds all models.
type anthropicList struct {
	Data    []anthropicModel `json:"data"`
	HasMore bool             `json:"has_more"`
	FirstID *string          `json:"first_id"`
	LastID  *string          `json:"last_id"`
}

func anthropicModels(all []openai.Model) anthropicList {
	list := anthropicList{Data: make([]anthropicModel, len(all))}
	for i, m := range all {
		list.Data[i] = anthropicModel{"model", m.ID, m.ID, time.Unix(m.Created, 0).UTC().Format(time.RFC3339), m.MaxModelLen, m.MaxModelLen}
	}
	if n := len(all); n > 0 {
		list.FirstID, list.LastID = &list.Data[0].ID, &list.Data[n-1].ID
	}
	return list
}

// codexModel is a model as Codex reads it: it fails where a member without a default is absent (codex-rs at 0d4367d,
// protocol/src/openai_models.rs, ModelInfo).
type codexModel struct {
	Slug                       string           `json:"slug"`
	DisplayName                string           `json:"display_name"`
	Description                *string          `json:"description"`
	SupportedReasoningLevels   []struct{}       `json:"supported_reasoning_levels"`
	ShellType                  string           `json:"shell_type"`
	Visibility                 string           `json:"visibility"`
	SupportedInAPI             bool             `json:"supported_in_api"`
	Priority                   int              `json:"priority"`
	Upgrade                    *struct{}        `json:"upgrade"`
	BaseInstructions           string           `json:"base_instructions"`
	SupportsReasoningSummaries bool             `json:"supports_reasoning_summaries"`
	SupportVerbosity           bool             `json:"support_verbosity"`
	DefaultVerbosity           *string          `json:"default_verbosity"`
	ApplyPatchToolType         *string          `json:"apply_patch_tool_type"`
	TruncationPolicy           truncationPolicy `json:"truncation_policy"`
	SupportsParallelToolCalls  bool             `json:"supports_parallel_tool_calls"`
	ContextWindow              int              `json:"context_window,omitempty"`
	ExperimentalSupportedTools []string         `json:"experimental_supported_tools"`
}

type truncationPolicy struct {
	Mode  string `json:"mode"`
	Limit int    `json:"limit"`
}

// codexInstructions is the system prompt that Codex uses with a model it finds in this list.
const codexInstructions = "You are a coding agent in a terminal. Work in the user's repository with the given tools until the task " +
	"is done. " +
	"Read the files that matter before you change them, and follow AGENTS.md where one is. Prefer small changes in the style of the " +
	"code around them. Search with rg. Run the tests that cover a change. Do not commit, delete or reset what the user did not ask for. " +
	"Say in one sentence what you are about to do before longer work, and end with a short summary of what changed and how it was checked."

func codexModels(all []openai.Model) []codexModel {
	models := make([]codexModel, len(all))
	for i, m := range all {
		models[i] = codexModel{
			Slug: m.ID, DisplayName: m.ID, SupportedReasoningLevels: []struct{}{}, ShellType: "shell_command", Visibility: "list",
			SupportedInAPI: true, Priority: i, BaseInstructions: codexInstructions,
			TruncationPolicy:          truncationPolicy{"bytes", 10_000}, // Codex's own for models that it does not have
			SupportsParallelToolCalls: true, ContextWindow: m.MaxModelLen, ExperimentalSupportedTools: []string{},
		}
	}
	return models
}

package models

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

// Config configures a [Library].
type Config struct {
	Tokenizers []string      `flag:"tokenizer,model-path" sep:"space" group:"Models" help:"A model's tokenizer and chat template: MODEL=PATH of a Hugging Face folder or a tokenizer.json, or PATH for a single model; or a folder of such folders, as MODEL, its last part, or in Hugging Face's cache layout. Repeat it. Read again on SIGHUP."`
	AskTimeout time.Duration `default:"500ms" range:"0s..10s"`
	CacheBytes int64         `default:"32MiB" unit:"bytes" range:"0.."`
}

// Validate returns every setting that is out of range or malformed.
func (c *Config) Validate() error {
	_, _, err := c.paths()
	return errors.Join(setting.Check(c), err)
}

// paths returns the paths by model, and those without a model: folders of models, or the path of the only model.
func (c *Config) paths() (byModel map[string]string, alone []string, err error) {
	byModel = map[string]string{}
	for _, pair := range c.Tokenizers {
		model, path, named := strings.Cut(pair, "=")
		switch {
		case !named && pair != "":
			alone = append(alone, pair)
			continue
		case model == "" || path == "":
			return nil, nil, setting.Errorf("tokenizer", "%q is neither MODEL=PATH nor PATH", pair)
		case byModel[model] != "":
			return nil, nil, setting.Errorf("tokenizer", "the model %q has two", model)
		}
		byModel[model] = path
	}
	return byModel, alone, nil
}

// Library holds the languages of the models. It is safe for concurrent use.
type Library struct {
	cfg     Config
	log     *slog.Logger
	paths   map[string]string // by model, from Config
	folders []string          // searched for the models' folders
	roster  *pools.Roster
	asker   *asker
	seed    uint64
	kick    chan struct{}

	calls, checks *prometheus.CounterVec
	unsized       map[string]bool // logged by reportUnsized; Run's own

	mu      sync.RWMutex // guards all below
	shelf   map[string]*Language
	only    *Language       // configured without a model
	onlyOf  string          // the model that uses it, empty for none
	several bool            // several models are served: none uses it
	missing map[string]bool // not found in the folders, or broken
}

// NewLibrary reads the languages that cfg names; Run searches the folders once a worker of the roster serves a model. t
// carries queries to engines. The error names the setting and the file.
func NewLibrary(cfg Config, roster *pools.Roster, t http1.Transport, log *slog.Logger, reg prometheus.Registerer) (*Library, error) {
	paths, alone, err := cfg.paths()
	if err != nil {
		return nil, err
	}
	var folders []string
	for _, path := range alone {
		if info, err := os.Stat(path); err != nil {
			return nil, setting.Errorf("tokenizer", "%w", err)
		} else if info.IsDir() && !isModel(path) {
			folders = append(folders, path)
		} else if len(paths) > 0 {
			return nil, setting.Errorf("tokenizer", "%q is for a single model, and there are others; use MODEL=PATH", path)
		} else {
			paths[""] = path
		}
	}
	set := metrics.In(reg)
	l := &Library{
		cfg: cfg, log: log, paths: paths, folders: folders, roster: roster, asker: newAsker(t, cfg.AskTimeout, cfg.CacheBytes),
		seed: rand.Uint64(), kick: make(chan struct{}, 1),
		unsized: map[string]bool{}, shelf: map[string]*Language{}, missing: map[string]bool{},
		calls:  set.Counter("tokenize_calls_total", "Prompts sent to workers' /tokenize, by outcome.", "model", "outcome"),
		checks: set.Counter("tokenizer_checks_total", "Comparisons of the gateway's ids with the engine's.", "model", "result"),
	}
	for model, path := range paths {
		language, err := Load(path, cfg.CacheBytes)
		if err != nil {
			return nil, setting.Errorf("tokenizer", "%s: %w", named(model), err)
		}
		l.put(model, language)
	}
	return l, nil
}

func named(model string) string {
	if model == "" {
		return "the only model"
	}
	return fmt.Sprintf("the model %q", model)
}

// Put sets a model's language unless it has one.
func (l *Library) Put(model string, language *Language) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shelf[model] == nil {
		l.shelf[model] = language
	}
}

// put sets or replaces a model's language. That of "" waits for its model. The caller holds mu or owns l alone.
func (l *Library) put(model string, language *Language) {
	if model == "" {
		l.only, model = language, l.onlyOf
	}
	if model != "" {
		l.shelf[model] = language
	}
}

// adopt assigns the language without a model to the only served model, to none while several are served.
func (l *Library) adopt(served []string) {
	l.mu.Lock()
	only, of, several := l.only, l.onlyOf, l.several
	if only == nil || len(served) == 0 || len(served) == 1 && served[0] == of || len(served) > 1 && several {
		l.mu.Unlock()
		return
	}
	delete(l.shelf, of)
	if l.onlyOf, l.several = "", len(served) > 1; !l.several {
		l.onlyOf, l.shelf[served[0]] = served[0], only
	}
	l.mu.Unlock()
	if len(served) > 1 {
		l.log.Warn("tokenizer without a model not used: several models are served (set --tokenizer MODEL=PATH)", "path",
			only.Path, "models", served)
		return
	}
	l.log.Info("tokenizer without a model used for the only one", "path", only.Path, "model", served[0])
}

// Of returns a model's language, nil for none.
func (l *Library) Of(model string) *Language {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.shelf[model]
}

// Models returns the models that have a language, sorted.
func (l *Library) Models() []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Sorted(maps.Keys(l.shelf))
}

// Ask queries a worker of the model for the request's tokens; nil if none answers in time. id names the call to the
// engine.
func (l *Library) Ask(ctx context.Context, req *openai.Request, engine, id string) []uint32 {
	if l.cfg.AskTimeout <= 0 || !asks(engine, req) {
		return nil
	}
	fleet := l.roster.Fleet(req.Model)
	for _, p := range []*pools.Pool{fleet.Prefill, fleet.Both, fleet.Decode} {
		if len(p.Members) > 0 {
			ids, outcome := l.asker.ask(ctx, question{req: req, id: id, seed: l.seed}, p.Members)
			l.calls.WithLabelValues(req.Model, outcome).Inc()
			return ids
		}
	}
	return nil
}

// Results of a comparison; a metric label.
const (
	agrees    = "agree"
	disagrees = "disagree"
)

// Compare records whether process w computed exactly the tokens that the model's language computed for a prompt.
func (l *Library) Compare(w *pools.Worker, p Prompt, same bool) {
	if p.by == nil {
		return
	}
	model, result := w.Model, agrees
	if !same {
		result = disagrees
	}
	l.checks.WithLabelValues(model, result).Inc()
	first, lost := p.by.compare(w, p.kind, same)
	if first {
		l.log.Warn("tokenizer or chat template disagrees with a worker; that worker renders such chats itself", "model", model,
			"path", p.by.Path, "worker", w.ID)
	}
	if lost {
		l.log.Warn("tokenizer or chat template disagrees with the model's workers; no longer used for such prompts", "model",
			model, "path", p.by.Path, "disagreements", distrustAfter)
	}
}

// Stale records a broken connection to a worker of a model: its process may have ended, and a new one is compared from
// the beginning, before a probe notices it.
func (l *Library) Stale(model, worker string) {
	if language := l.Of(model); language != nil {
		language.stale(worker)
	}
}

// lives returns the processes that serve a model now.
func (l *Library) lives(model string) map[incarnation]bool {
	fleet, lives := l.roster.Fleet(model), map[incarnation]bool{}
	for _, p := range []*pools.Pool{fleet.Prefill, fleet.Both, fleet.Decode} {
		for _, m := range p.Members {
			lives[lifeOf(m.Worker)] = true
		}
	}
	return lives
}

// meet updates the processes that serve a model.
func (l *Library) meet(model string) {
	if language := l.Of(model); language != nil && language.meets(l.lives(model)) {
		l.log.Info("retrying the tokenizer: a worker has started since", "model", model)
	}
}

// Report returns the models' languages.
func (l *Library) Report() map[string]LanguageReport {
	out := map[string]LanguageReport{}
	for _, model := range l.Models() {
		language := l.Of(model)
		out[model] = LanguageReport{language.Path, language.Templates(), language.tokenizer.Tokenizer().VocabSize(), language.Trust()}
	}
	return out
}

// LanguageReport is a model's language for operators.
type LanguageReport struct {
	// Path is its folder, empty for the simulated model's.
	Path string `json:"path,omitempty"`
	// Templates are the names of its chat templates.
	Templates []string `json:"chat_templates"`
	// VocabSize is its highest token id plus one.
	VocabSize int `json:"vocab_size"`
	TrustState
}

// Wake makes Run search for the languages of newly served models. It does not wait.
func (l *Library) Wake() {
	select {
	case l.kick <- struct{}{}:
	default: // Run is notified already
	}
}

// Run searches the folders for the languages of served models, until ctx ends.
func (l *Library) Run(ctx context.Context) error {
	for {
		served := l.roster.Models()
		l.adopt(served)
		for _, model := range served {
			if len(l.folders) > 0 {
				l.find(model)
			}
			l.meet(model)
			l.reportUnsized(model)
			for _, outcome := range askOutcomes { // so that a scrape shows them before they happen
				l.calls.WithLabelValues(model, outcome)
			}
			for _, result := range []string{agrees, disagrees} {
				l.checks.WithLabelValues(model, result)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.kick:
		}
	}
}

// find searches the folders for a model's language, once.
func (l *Library) find(model string) {
	l.mu.RLock()
	known := l.shelf[model] != nil || l.missing[model]
	l.mu.RUnlock()
	if known {
		return
	}
	var language *Language
	path := l.search(model)
	if path != "" {
		var err error
		if language, err = Load(path, l.cfg.CacheBytes); err != nil {
			l.log.Warn("tokenizer cannot be read; routing the model's prompts without it", "model", model, "path", path, "error", err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if language == nil {
		l.missing[model] = true
		return
	}
	l.shelf[model] = language
	l.log.Info("tokenizer found", "model", model, "path", path)
}

// Reload reads all files again and searches for missing ones. A language that cannot be read is kept; the error names it.
func (l *Library) Reload() error {
	l.mu.Lock()
	clear(l.missing)
	paths := maps.Clone(l.paths)
	for model, language := range l.shelf {
		if paths[model] == "" && !language.simulated() && model != l.onlyOf {
			paths[model] = language.Path
		}
	}
	l.mu.Unlock()
	var errs []error
	for _, model := range slices.Sorted(maps.Keys(paths)) {
		language, err := Load(paths[model], l.cfg.CacheBytes)
		if err != nil {
			errs = append(errs, fmt.Errorf("the tokenizer of %s: %w", named(model), err))
			continue
		}
		l.mu.Lock()
		l.put(model, language)
		l.mu.Unlock()
	}
	l.Wake()
	return errors.Join(errs...)
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/internal/edge"
	"github.com/tandem-pd/tandem/internal/replay"
	"github.com/tandem-pd/tandem/internal/simulate"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// loadSettings is what can be set about a load.
type loadSettings struct {
	Workload struct {
		Trace        string        `setting:"trace"`
		BlockTokens  int           `setting:"trace-block-size"`
		FromLog      string        `setting:"from-log"`
		TraceOut     string        `setting:"trace-out"`
		Lenient      bool          `setting:"lenient"`
		Rate         float64       `setting:"rate"`
		InputTokens  int           `setting:"isl"`
		OutputTokens int           `setting:"osl"`
		SharedPrefix float64       `setting:"shared-prefix"`
		Requests     int           `setting:"requests"`
		Duration     time.Duration `setting:"duration"`
		Limit        int           `setting:"limit"`
		Speed        float64       `setting:"speed"`
		Seed         int           `setting:"seed"`
	}
	Target struct {
		URL         string        `setting:"url"`
		Model       string        `setting:"model"`
		APIKeyFile  string        `setting:"api-key-file"`
		Prompt      string        `setting:"prompt"`
		Tokenizer   string        `setting:"tokenizer"`
		Nvext       bool          `setting:"nvext"`
		IgnoreEOS   bool          `setting:"ignore-eos"`
		Timeout     time.Duration `setting:"request-timeout"`
		MaxInFlight int           `setting:"max-in-flight"`
	}
	Report struct {
		Title   string `setting:"title"`
		Samples string `setting:"out"`
		JSON    string `setting:"json"`
		HTML    string `setting:"html"`

		TTFT time.Duration `setting:"slo-ttft"`
		ITL  time.Duration `setting:"slo-itl"`
	}
}

func loadGroups() []settings.Group {
	return []settings.Group{
		{Title: "Workload", Settings: []settings.Setting{
			{Name: "trace", Kind: settings.String, Default: "", Help: "Trace to replay: JSON lines as Mooncake has them, gzipped or not; lines with session_id and delay run one after another. Unset and without a rate, the built-in trace; gateway traces lists others."},
			{Name: "trace-block-size", Kind: settings.Int, Default: "512", Min: "1", Max: "1000000", Help: "Tokens that one hash id of the trace stands for. Not the engines' block size."},
			{Name: "from-log", Kind: settings.String, Default: "", Help: "Send nothing: make a trace of this log of a gateway, gzipped or not. It says when requests came, how long they and their answers were, and, of a gateway with --log-blocks, which prompts began alike; never a word of them."},
			{Name: "trace-out", Kind: settings.String, Default: "", Help: "With --from-log: the file to write, JSON lines as Mooncake has them. Unset, standard output."},
			{Name: "lenient", Kind: settings.Bool, Default: "false", Help: "With --from-log: pass over lines that are wrong, and count them."},
			{Name: "rate", Kind: settings.Float, Default: "0", Min: "0", Help: "Without a trace: requests a second, arriving at random (Poisson)."},
			{Name: "isl", Kind: settings.Int, Default: "1000", Min: "1", Max: "10000000", Help: "Without a trace: tokens of each prompt."},
			{Name: "osl", Kind: settings.Int, Default: "100", Min: "1", Max: "10000000", Help: "Without a trace: tokens of each answer."},
			{Name: "shared-prefix", Kind: settings.Float, Default: "0", Min: "0", Max: "1", Help: "Without a trace: the part of each prompt, from its beginning, that all prompts have in common. 0.5 is a long system prompt."},
			{Name: "requests", Kind: settings.Int, Default: "0", Min: "0", Max: "10000000", Help: "Without a trace: stop after so many requests. Where only this is set, the duration does not count."},
			{Name: "duration", Kind: settings.Duration, Default: "60s", Min: "0s", Help: "Without a trace: stop after so long, answers not counted."},
			{Name: "limit", Kind: settings.Int, Default: "0", Min: "0", Help: "Send only the first so many requests of the workload; 0 sends all."},
			{Name: "speed", Kind: settings.Float, Default: "1", Min: "0.000001", Max: "1000000", Help: "Divides all times between requests. 2 is twice the load."},
			{Name: "seed", Kind: settings.Int, Default: "0", Min: "0", Help: "Makes the prompts' tokens, and the arrivals where there is no trace. 0 draws one and prints it, so that a second run does not find the first one's prompts cached; another number repeats a run."},
		}},
		{Title: "Target", Settings: []settings.Setting{
			{Name: "url", Kind: settings.String, Default: "http://127.0.0.1:8000", Help: "Root of the OpenAI API to put under load.", Validate: httpURL},
			{Name: "model", Kind: settings.String, Default: "", Help: "Model to ask for. Unset, the first that the endpoint lists."},
			{Name: "api-key-file", Kind: settings.String, Default: "", Help: "File whose first key is sent; the gateway's own file serves."},
			{
				Name: "prompt", Kind: settings.String, Default: "ids",
				OneOf: []settings.Choice{
					{Name: "ids", Help: "token ids: exactly as long and as shared as the workload says"},
					{Name: "text", Help: "words, each a token; for endpoints that take no ids. As long as the tokenizer is the model's"},
				},
				Help: "Form of the prompts, to /v1/completions.",
			},
			{Name: "tokenizer", Kind: settings.String, Default: "", Help: "The model's tokenizer.json. Unset, the simulated model's 4,096 tokens; their ids are ordinary tokens in most vocabularies."},
			{Name: "nvext", Kind: settings.Bool, Default: "true", Help: "Ask which workers served. Dropped by itself where the endpoint answers 400 to it."},
			{Name: "ignore-eos", Kind: settings.Bool, Default: "true", Help: "Ask for answers of full length. Engines know the field; OpenAI's own API refuses it."},
			{Name: "request-timeout", Kind: settings.Duration, Default: "10m", Min: "1ms", Help: "Longest a request may take, from its sending."},
			{Name: "max-in-flight", Kind: settings.Int, Default: "4096", Min: "1", Max: "1000000", Help: "Most requests in flight. One that is due beyond is not sent and counts as failed; the report says so. Each is a connection."},
		}},
		{Title: "Report", Settings: []settings.Setting{
			{Name: "title", Kind: settings.String, Default: "Load", Help: "Heading of the report."},
			{Name: "out", Kind: settings.String, Default: "", Help: "File for a JSON line a request."},
			{Name: "json", Kind: settings.String, Default: "", Help: "File for the summary as JSON."},
			{Name: "html", Kind: settings.String, Default: "", Help: "File for the report with plots, which needs nothing beside it."},
			{Name: "slo-ttft", Kind: settings.Duration, Default: "2s", Min: "0s", Help: "A request is good when its first token comes within this. 0 does not count it."},
			{Name: "slo-itl", Kind: settings.Duration, Default: "25ms", Min: "0s", Help: "A request is good when its mean time between tokens is at most this. 0 does not count it."},
		}},
	}
}

// httpURL accepts the root of an API.
func httpURL(value any) error {
	url := value.(string)
	for _, scheme := range []string{"http://", "https://"} {
		if host, ok := strings.CutPrefix(url, scheme); ok && host != "" && !strings.HasPrefix(host, "/") {
			return nil
		}
	}
	return errors.New("it must begin with http:// or https:// and a host")
}

// load replays a workload against an endpoint and reports.
func load(ctx context.Context, args []string, p process) error {
	var s loadSettings
	set := settings.NewSet(loadGroups()...).Beside(besides()...)
	r, err := resolve(set, "gateway load [FLAGS]: put load on an OpenAI endpoint and measure how it serves.\n"+
		"Requests go out at their times whatever is in flight (open loop), and latencies count from those times. "+
		"Ctrl-C ends the run with a report of what ran. Status 0 means that every request was answered.", args, p, &s)
	if err != nil {
		return err
	}
	if s.Workload.FromLog != "" {
		return s.fromLog(r, p)
	}
	if s.Workload.Trace != "" && s.Workload.Rate != 0 {
		return usageError{errors.New("--trace FILE and --rate R: only one of them")}
	}
	if s.Workload.Seed == 0 {
		s.Workload.Seed = 1 + rand.IntN(999_999)
	}
	workload, err := s.workload(r, p)
	if err != nil {
		return err
	}
	endpoint, err := s.endpoint(p)
	if err != nil {
		return err
	}
	if endpoint.Model == "" {
		if endpoint.Model, err = endpoint.FirstModel(ctx); err != nil {
			if errors.Is(err, syscall.ECONNREFUSED) {
				return fmt.Errorf("nothing listens at %s: start a fleet to try with `gateway dev`, or name another --url: %w", endpoint.URL, err)
			}
			return fmt.Errorf("no --model, and none found: %w", err)
		}
	}
	files, err := s.openReports()
	if err != nil {
		return err
	}
	defer files.close()
	run, err := replay.New(replay.Config{Speed: s.Workload.Speed, MaxInFlight: s.Target.MaxInFlight, Timeout: s.Target.Timeout}, workload, endpoint)
	if err != nil {
		return usageError{err}
	}
	report := &replay.Report{
		Title: s.Report.Title, Target: endpoint.URL + " " + endpoint.Model, Workload: workload.Name,
		Speed: s.Workload.Speed, Seed: uint64(s.Workload.Seed), Started: time.Now(),
	}
	if s.Workload.Trace == "" && s.Workload.Rate == 0 {
		fmt.Fprintf(p.stderr, "No --trace and no --rate: this is %s.\n", replay.BuiltInName)
	}
	fmt.Fprintf(p.stderr, "%d requests over %v to %s, model %s, seed %d (--seed %[5]d repeats them)\n", len(workload.Requests),
		time.Duration(float64(workload.Span())/s.Workload.Speed).Round(time.Second), endpoint.URL, endpoint.Model, s.Workload.Seed)
	stop := watch(p.stderr, run.Progress)
	report.Samples = run.Run(ctx)
	stop()
	if ctx.Err() != nil {
		report.Notes = append(report.Notes, fmt.Sprintf("ended before its time: %d of %d requests were due", len(report.Samples), len(workload.Requests)))
	}
	if endpoint.NvextRefused() {
		report.Notes = append(report.Notes, "the endpoint refuses nvext: who served is not known")
	}
	report.Finish()
	if report.Summary.CachedTokens > 0 {
		s.noteWarmth(report, workload)
	}
	report.Lines = append(report.Lines, simulate.KeptOf(report.Samples, s.limits()).Sentence(s.limits()))
	if err := errors.Join(report.WriteText(p.stdout), files.write(report)); err != nil {
		return err
	}
	if n := report.Summary.Failed(); n > 0 && ctx.Err() == nil {
		most := report.Failures()[0]
		return fmt.Errorf("%d of %d requests were not answered, %d of them: %s", n, report.Summary.Requests, most.Requests, most)
	}
	return nil
}

// noteWarmth notes that caches held what this run did not put there.
func (s *loadSettings) noteWarmth(r *replay.Report, w *replay.Workload) {
	if cached, own, prompts, warm := replay.Warm(r.Samples, w.Shared()); warm {
		r.Notes = append(r.Notes, fmt.Sprintf("%d of %d prompt tokens were cached, and this workload repeats only %d of them: "+
			"the caches held prompts of an earlier run with seed %d, so that this one measures them; run it without --seed", cached, prompts, own, s.Workload.Seed))
	}
}

// limits are those that make a request good.
func (s *loadSettings) limits() simulate.SLO {
	return simulate.SLO{TTFT: s.Report.TTFT, ITL: s.Report.ITL}
}

// workload reads or makes the workload.
func (s *loadSettings) workload(r *settings.Resolved, p process) (*replay.Workload, error) {
	w := &s.Workload
	if w.Rate != 0 {
		g := replay.Generator{
			Rate: w.Rate, InputTokens: w.InputTokens, OutputTokens: w.OutputTokens, SharedPrefix: w.SharedPrefix,
			Requests: w.Requests, Duration: w.Duration, Seed: uint64(w.Seed),
		}
		if w.Requests > 0 && !r.IsSet("duration") {
			g.Duration = 0
		}
		made, err := g.Workload()
		if err != nil {
			return nil, usageError{err}
		}
		return made.Limit(w.Limit), nil
	}
	fixed := []string{"isl", "osl", "shared-prefix", "requests", "duration"}
	if w.Trace == "" {
		fixed = append(fixed, "trace-block-size")
	}
	for _, name := range fixed {
		if r.IsSet(name) {
			return nil, usageError{r.Refuse(name, errors.New("a trace says that itself, and without --trace and --rate the built-in one is replayed"))}
		}
	}
	if w.Trace == "" {
		return replay.BuiltIn(w.Limit), nil
	}
	data, err := p.readFile(w.Trace)
	if err != nil {
		return nil, usageError{r.Refuse("trace", replay.Absent(w.Trace, err))}
	}
	read, err := replay.ReadTrace(bytes.NewReader(data), w.Trace, w.BlockTokens, w.Limit)
	if err != nil {
		return nil, usageError{err}
	}
	read.Name = filepath.Base(w.Trace)
	return read, nil
}

// endpoint is the target, with a transport that has a connection for each
// request in flight and goes to it directly.
func (s *loadSettings) endpoint(p process) (*replay.Endpoint, error) {
	t := &s.Target
	tokenizer := tokens.Sim()
	if t.Tokenizer != "" {
		data, err := p.readFile(t.Tokenizer)
		if err != nil {
			return nil, usageError{err}
		}
		if tokenizer, err = tokens.Load(data); err != nil {
			return nil, usageError{fmt.Errorf("%s: %w", t.Tokenizer, err)}
		}
	}
	prompter, err := replay.NewPrompter(tokenizer, uint64(s.Workload.Seed))
	if err != nil {
		return nil, usageError{err}
	}
	key := ""
	if t.APIKeyFile != "" {
		data, err := p.readFile(t.APIKeyFile)
		if err != nil {
			return nil, usageError{err}
		}
		if key = edge.FirstKey(data); key == "" {
			return nil, usageError{fmt.Errorf("%s: no key in it", t.APIKeyFile)}
		}
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &replay.Endpoint{
		URL: t.URL, Model: t.Model, APIKey: key, Prompter: prompter, Text: t.Prompt == "text", Nvext: t.Nvext, IgnoreEOS: t.IgnoreEOS,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, MaxIdleConns: t.MaxInFlight, MaxIdleConnsPerHost: t.MaxInFlight,
			IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second, DisableCompression: true,
		},
	}, nil
}

// reportFile is a file that is opened before the run, so that a path that
// cannot be written is known before an hour of load and not after it.
type reportFile struct {
	file  *os.File
	write func(r *replay.Report, w io.Writer) error
}

type reportFiles []reportFile

func (s *loadSettings) openReports() (files reportFiles, err error) {
	for _, f := range []struct {
		path  string
		write func(r *replay.Report, w io.Writer) error
	}{
		{s.Report.Samples, (*replay.Report).WriteSamples},
		{s.Report.JSON, s.writeJSON},
		{s.Report.HTML, (*replay.Report).WriteHTML},
	} {
		if f.path == "" {
			continue
		}
		file, err := os.Create(f.path)
		if err != nil {
			files.close()
			return nil, err
		}
		files = append(files, reportFile{file, f.write})
	}
	return files, nil
}

// writeJSON writes the summary, with "arms" as `gateway simulate --json` has them.
func (s *loadSettings) writeJSON(r *replay.Report, w io.Writer) error {
	all := map[string]json.RawMessage{}
	observed := simulate.Observed(r.Title, r.Samples, s.limits())
	for _, write := range []func(io.Writer) error{observed.WriteJSON, r.WriteJSON} {
		var one bytes.Buffer
		if err := errors.Join(write(&one), json.Unmarshal(one.Bytes(), &all)); err != nil {
			return err
		}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(all)
}

func (files reportFiles) write(r *replay.Report) error {
	for _, f := range files {
		if err := errors.Join(f.write(r, f.file), f.file.Sync()); err != nil {
			return fmt.Errorf("%s: %w", f.file.Name(), err)
		}
	}
	return nil
}

func (files reportFiles) close() {
	for _, f := range files {
		_ = f.file.Close() // what was written is synced
	}
}

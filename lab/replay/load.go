package replay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/terminal"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// LoadSettings are those of `gateway load`.
type LoadSettings struct {
	Workload struct {
		Trace        string        `flag:"trace" help:"Trace to replay: JSON lines in Mooncake's form, gzipped or not. Without it and without a rate, the built-in one; gateway traces lists others."`
		BlockTokens  int           `flag:"trace-block-size" default:"512" range:"1..1000000" help:"Tokens of each hash id of the trace."`
		FromLog      string        `flag:"from-log" help:"Make a trace of a gateway's log, and send nothing. With --log-requests=blocks it has which prompts began alike; it has no text."`
		TraceOut     string        `flag:"trace-out" help:"With --from-log: the file to write. Empty is standard output."`
		Lenient      bool          `flag:"lenient" default:"false" help:"With --from-log: skip and count wrong lines."`
		Rate         float64       `flag:"rate" default:"0" range:"0.." help:"Without a trace: requests a second, arriving at random (Poisson)."`
		InputTokens  int           `flag:"isl" default:"1000" range:"1..10000000" help:"Without a trace: tokens of each prompt."`
		OutputTokens int           `flag:"osl" default:"100" range:"1..10000000" help:"Without a trace: tokens of each answer."`
		SharedPrefix float64       `flag:"shared-prefix" default:"0" range:"0..1" help:"Without a trace: the share of each prompt that all have in common, from its beginning."`
		Requests     int           `flag:"requests" default:"0" range:"0..10000000" help:"Without a trace: stop after this many requests. Set alone, the duration does not count."`
		Duration     time.Duration `flag:"duration" default:"60s" range:"0s.." help:"Without a trace: stop after this time, answers not counted."`
		Limit        int           `flag:"limit" default:"0" range:"0.." help:"Send only this many first requests; 0 sends all."`
		Speed        float64       `flag:"speed" default:"1" range:"0.000001..1000000" help:"Divides all times between requests: 2 is twice the load."`
		Seed         int           `flag:"seed" default:"0" range:"0.." help:"Seed of prompts and arrivals. 0 draws one and prints it; a repeated seed finds prompts cached."`
	} `group:"Workload"`
	Target struct {
		URL         string        `flag:"url" default:"http://127.0.0.1:8000" form:"url http https" help:"Root of the OpenAI API to put under load."`
		Model       string        `flag:"model" help:"Model to request. Empty is the first one listed."`
		APIKeyFile  string        `flag:"api-key-file" help:"File whose first key is sent."`
		Prompt      string        `flag:"prompt" default:"ids" oneof:"ids=token ids, exactly as long and shared as requested|text=words, each a token of the model's tokenizer" help:"Form of the prompts, to /v1/completions."`
		Tokenizer   string        `flag:"tokenizer" help:"The model's tokenizer.json. Empty uses the simulated model's 4,096 tokens."`
		Nvext       bool          `flag:"nvext" default:"true" help:"On: request the workers' names; left out where the endpoint answers 400."`
		IgnoreEOS   bool          `flag:"ignore-eos" default:"true" help:"On: request answers of full length. Engines accept it; OpenAI's API refuses it."`
		Timeout     time.Duration `flag:"request-timeout" default:"10m" range:"1ms.." help:"Longest time of a request, from its sending."`
		MaxInFlight int           `flag:"max-in-flight" default:"4096" range:"1..1000000" help:"Most requests in flight. One that is due beyond is not sent and counts as failed."`
	} `group:"Target"`
	Report struct {
		Title   string `flag:"title" default:"Load" help:"Heading of the report."`
		Samples string `flag:"out" help:"File for a JSON line a request."`
		JSON    string `flag:"json" help:"File for the summary as JSON."`
		HTML    string `flag:"html" help:"File for the report with plots."`

		TTFT time.Duration `flag:"slo-ttft" default:"2s" range:"0s.." help:"A request is good when its first token comes within this. 0 does not count it."`
		ITL  time.Duration `flag:"slo-itl" default:"25ms" range:"0s.." help:"A request is good when its mean time between tokens is at most this. 0 does not count it."`
	} `group:"Report"`
}

// LoadManual is the text of --help before the settings, LoadFirst the settings that it shows.
const LoadManual = "gateway load [FLAGS]: put load on an OpenAI endpoint and measure how it serves.\n" +
	"Requests go out at their times whatever is in flight (open loop), and latencies count from those times. " +
	"Ctrl-C ends the run with a report of what ran. Status 0 means that every request was answered.\n\n" +
	"  gateway load --rate 4 --duration 30s\n  gateway load --url http://gateway:8000 --html report.html"

var LoadFirst = []string{
	"trace", "rate", "isl", "osl", "requests", "duration", "speed", "seed", "url", "model", "api-key-file", "json", "html", "slo-ttft",
	"slo-itl",
}

// Run replays the workload against the endpoint and reports, or makes a trace of
// a log. isSet reports whether the user set a setting.
func (s *LoadSettings) Run(ctx context.Context, isSet func(name string) bool, stdout, stderr io.Writer) error {
	if s.Workload.FromLog != "" {
		return s.fromLog(isSet, stdout, stderr)
	}
	if s.Workload.Trace != "" && s.Workload.Rate != 0 {
		return setting.Errorf("rate", "--trace FILE and --rate R: only one of them")
	}
	if s.Workload.Seed == 0 {
		s.Workload.Seed = 1 + rand.IntN(999_999)
	}
	workload, err := s.workload(isSet)
	if err != nil {
		return err
	}
	endpoint, err := s.endpoint()
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
	files, err := OpenFiles(s.Report.Samples, s.Report.JSON, s.Report.HTML)
	if err != nil {
		return err
	}
	defer files.Close()
	run, err := New(Config{Speed: s.Workload.Speed, MaxInFlight: s.Target.MaxInFlight, Timeout: s.Target.Timeout}, workload, endpoint)
	if err != nil {
		return err
	}
	report := &Report{
		Title: s.Report.Title, Target: endpoint.URL + " " + endpoint.Model, Workload: workload.Name,
		Speed: s.Workload.Speed, Seed: uint64(s.Workload.Seed), Started: time.Now(),
		Limits: Limits{TTFT: s.Report.TTFT, ITL: s.Report.ITL},
	}
	if s.Workload.Trace == "" && s.Workload.Rate == 0 {
		fmt.Fprintf(stderr, "No --trace and no --rate: this is %s.\n", BuiltInName)
	}
	span := time.Duration(float64(workload.Span()) / s.Workload.Speed)
	fmt.Fprintf(stderr, "%d requests over %v to %s, model %s, seed %d (--seed %[5]d repeats them)\n", len(workload.Requests),
		span.Round(time.Second), endpoint.URL, endpoint.Model, s.Workload.Seed)
	began := time.Now()
	stop := terminal.Show(stderr, func() terminal.State { return state(run.Progress(), span, time.Since(began)) })
	report.Samples = run.Run(ctx)
	stop()
	if ctx.Err() != nil {
		report.Notes = append(report.Notes, fmt.Sprintf("ended before its time: %d of %d requests were due", len(report.Samples),
			len(workload.Requests)))
	}
	if endpoint.NvextRefused() {
		report.Notes = append(report.Notes, "the endpoint refuses nvext: who served is not known")
	}
	report.Finish()
	if report.Summary.CachedTokens > 0 {
		s.noteWarmth(report, workload)
	}
	if err := errors.Join(report.WriteText(stdout), files.Write(report.WriteSamples, report.WriteJSON, report.WriteHTML)); err != nil {
		return err
	}
	if n := report.Summary.Failed(); n > 0 && ctx.Err() == nil {
		most := report.Failures()[0]
		return fmt.Errorf("%d of %d requests were not answered, %d of them: %s", n, report.Summary.Requests, most.Requests, most)
	}
	return nil
}

// noteWarmth notes that caches held blocks of earlier runs.
func (s *LoadSettings) noteWarmth(r *Report, w *Workload) {
	if cached, own, prompts, warm := Warm(r.Samples, w.Shared()); warm {
		r.Notes = append(r.Notes, fmt.Sprintf("%d of %d prompt tokens were cached, and this workload repeats only %d of them: "+
			"the caches held prompts of an earlier run with seed %d, so that this one measures them; run it without --seed", cached, prompts,
			own, s.Workload.Seed))
	}
}

// workload reads or makes the workload.
func (s *LoadSettings) workload(isSet func(string) bool) (*Workload, error) {
	w := &s.Workload
	if w.Rate != 0 {
		g := Generator{
			Rate: w.Rate, InputTokens: w.InputTokens, OutputTokens: w.OutputTokens, SharedPrefix: w.SharedPrefix,
			Requests: w.Requests, Duration: w.Duration, Seed: uint64(w.Seed),
		}
		if n := cmp.Or(w.Requests, w.Limit); n > 0 && !isSet("duration") {
			g.Requests, g.Duration = n, 0
		}
		made, err := g.Workload()
		if err != nil {
			return nil, setting.Errorf("rate", "%w", err)
		}
		return made.Limit(w.Limit), nil
	}
	fixed := []string{"isl", "osl", "shared-prefix", "requests", "duration"}
	if w.Trace == "" {
		fixed = append(fixed, "trace-block-size")
	}
	for _, name := range fixed {
		if isSet(name) {
			return nil, setting.Errorf(name, "a trace has its own, and without --trace and --rate the built-in one is replayed")
		}
	}
	if w.Trace == "" {
		return BuiltIn(w.Limit), nil
	}
	data, err := os.ReadFile(w.Trace)
	if err != nil {
		return nil, setting.Errorf("trace", "%w", Absent(w.Trace, err))
	}
	read, err := ReadTrace(bytes.NewReader(data), w.Trace, w.BlockTokens, w.Limit)
	if err != nil {
		return nil, setting.Errorf("trace", "%w", err)
	}
	read.Name = filepath.Base(w.Trace)
	return read, nil
}

// endpoint is the target, with a transport that has a connection for each request in flight and goes to it directly.
func (s *LoadSettings) endpoint() (*Endpoint, error) {
	t := &s.Target
	tokenizer := tokens.Sim()
	if t.Tokenizer != "" {
		data, err := os.ReadFile(t.Tokenizer)
		if err == nil {
			tokenizer, err = tokens.Load(data)
		}
		if err != nil {
			return nil, setting.Errorf("tokenizer", "%s: %w", t.Tokenizer, err)
		}
	}
	prompter, err := NewPrompter(tokenizer, uint64(s.Workload.Seed))
	if err != nil {
		return nil, setting.Errorf("tokenizer", "%w", err)
	}
	key := ""
	if t.APIKeyFile != "" {
		var err error
		if key, err = auth.ReadFirst(t.APIKeyFile); err != nil {
			return nil, setting.Errorf("api-key-file", "%w", err)
		}
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &Endpoint{
		URL: t.URL, Model: t.Model, APIKey: key, Prompter: prompter, Text: t.Prompt == "text", Nvext: t.Nvext, IgnoreEOS: t.IgnoreEOS,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, MaxIdleConns: t.MaxInFlight, MaxIdleConnsPerHost: t.MaxInFlight,
			IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second, DisableCompression: true,
		},
	}, nil
}

// fromLog writes a trace of a gateway's log, in place of a load.
func (s *LoadSettings) fromLog(isSet func(string) bool, stdout, stderr io.Writer) error {
	w := &s.Workload
	for _, name := range []string{"trace", "rate"} {
		if isSet(name) {
			return setting.Errorf(name, "--from-log sends nothing")
		}
	}
	data, err := os.ReadFile(w.FromLog)
	if err != nil {
		return setting.Errorf("from-log", "%w", err)
	}
	t, err := FromLog(bytes.NewReader(data), w.FromLog, w.Lenient)
	if err != nil {
		return setting.Errorf("from-log", "%w", err)
	}
	if err := writeTrace(t, w.TraceOut, stdout); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%d requests over %v; %d of them name their blocks of %d tokens; %d without an answer are left out, %d wrong lines passed over\n",
		t.Len(), t.Span().Round(time.Second), t.Named, t.BlockTokens, t.LeftOut, t.Skipped)
	if t.Named == 0 {
		fmt.Fprintln(stderr, "No prompt shares anything in this trace: the gateway ran without --log-requests=blocks.")
	}
	return nil
}

// writeTrace writes to the file, or to stdout where there is no name.
func writeTrace(t *LogTrace, name string, stdout io.Writer) error {
	if name == "" {
		return t.Write(stdout)
	}
	f, err := os.Create(name)
	if err != nil {
		return setting.Errorf("trace-out", "%w", err)
	}
	if err := errors.Join(t.Write(f), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// state is how far a load is that has run for so long and whose last request is due after span. Requests go out by the
// clock, so that the time left is known while some are still due; the answers to the last of them come on top.
func state(p Progress, span, taken time.Duration) terminal.State {
	s := terminal.State{Text: fmt.Sprintf("%d of %d sent, %d in flight, %d answered, %d failed", p.Sent, p.Total, p.InFlight,
		p.Answered, p.Failed)}
	if p.Total > 0 {
		s.Share = float64(p.Answered+p.Failed) / float64(p.Total)
	}
	if p.Sent < p.Total {
		s.Left = max(0, span-taken)
	}
	return s
}

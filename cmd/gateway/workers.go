package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/terminal"
	"github.com/tandem-pd/tandem/router/replica"
)

type workersSettings struct {
	administration
	Watch   bool          `flag:"watch" default:"false" group:"Administration" help:"On: list refreshes once a second until Ctrl-C."`
	Wait    bool          `flag:"wait" default:"true" group:"Administration" help:"On: drain waits until nothing is booked on the worker."`
	Move    bool          `flag:"move" default:"false" group:"Administration" help:"On: the worker's streams resume on other workers at once."`
	Timeout time.Duration `flag:"timeout" default:"10m" range:"0s.." group:"Administration" help:"How long drain waits; 0: no limit."`
}

// workersReport is the displayed part of GET /workers.
type workersReport struct {
	Pools []struct {
		Model   string
		Role    string
		Workers []workerRow
	}
	Events   map[string][]struct{ Worker, State string } `json:"kv_events"`
	Cordoned []string
	Replicas []struct {
		Name, State string
		Heard       float64 `json:"heard_seconds"`
		Requests    int
	}
}

type workerRow struct {
	ID, State, Address, Circuit string
	Requests                    int
	ActiveBlocks                int      `json:"active_blocks"`
	TotalBlocks                 int      `json:"total_blocks"`
	PrefillTokens               int      `json:"prefill_tokens"`
	CachedBlocks                int      `json:"cached_blocks"`
	LostFor                     *float64 `json:"lost_seconds"`
	PrefillSpeed                float64  `json:"prefill_speed"`
	DecodeSpeed                 float64  `json:"decode_speed"`
	Failed                      float64  `json:"failed_share"`
	Outlier                     string
	Ejected                     bool
}

// slowest returns the lower of the worker's speeds, 0 while unknown.
func (w *workerRow) slowest() float64 {
	return (&fault.Standing{Prefill: w.PrefillSpeed, Decode: w.DecodeSpeed}).Slowest()
}

// speed returns how the worker compares with the others of its pool.
func (w *workerRow) speed() string {
	text := "-"
	if slowest := w.slowest(); slowest > 0 {
		text = strconv.FormatFloat(slowest, 'f', 2, 64)
	}
	switch w.Outlier {
	case "":
		return text
	case fault.FailingCalls:
		return fmt.Sprintf("%s, %.0f %% fail%s", text, 100*w.Failed, map[bool]string{true: ", ejected"}[w.Ejected])
	}
	return text + map[bool]string{false: ", slow", true: ", slow, ejected"}[w.Ejected]
}

// find returns the worker with that id, or nil.
func (r *workersReport) find(id string) *workerRow {
	for _, p := range r.Pools {
		for i := range p.Workers {
			if p.Workers[i].ID == id {
				return &p.Workers[i]
			}
		}
	}
	return nil
}

// workers lists the workers, or takes one out of the choice or back in.
func workers(ctx context.Context, args []string, p process) error {
	var s workersSettings
	_, words, err := resolveWords(&s, "workers", args, p)
	if err != nil {
		return err
	}
	verb, id, err := verbAndID(words)
	if err != nil {
		return &setting.Error{Err: err}
	}
	o, err := s.operator()
	if err != nil {
		return err
	}
	defer o.close()
	switch {
	case s.Watch && verb != "list":
		return setting.Errorf("flag --watch", "is for list, not for %s", verb)
	case s.Watch:
		w := watch{out: p.stdout, rewrites: terminal.Rewrites(p.stdout)}
		return w.run(ctx, func(ctx context.Context) (string, error) { return o.look(ctx, s.JSON, id != "", w.columns()) })
	case verb == "list":
		text, err := o.look(ctx, s.JSON, id != "", math.MaxInt)
		if err == nil {
			_, err = io.WriteString(p.stdout, text)
		}
		return err
	}
	return o.cordon(ctx, verb, id, s, p)
}

// verbAndID checks the words of the command line.
func verbAndID(words []string) (verb, id string, err error) {
	verbs := []string{"list", "cordon", "drain", "uncordon", "forget"}
	words = append(words, "", "")
	verb, id = words[0], words[1]
	switch {
	case verb == "":
		err = errors.New("want a verb: list, cordon ID, drain ID, uncordon ID or forget ID")
	case !slices.Contains(verbs, verb):
		err = fmt.Errorf("%q: %w", verb, setting.Unknown("verb", verb, verbs))
	case verb == "list" && id != "" && id != worstFirst:
		err = fmt.Errorf("list takes no %q; `list %s` has outliers and the slowest first", id, worstFirst)
	case verb != "list" && id == "":
		err = fmt.Errorf("%s which worker? `gateway workers list` shows their ids", verb)
	case words[2] != "":
		err = fmt.Errorf("%s takes one worker; %q is too much", verb, words[2])
	}
	return verb, id, err
}

// worstFirst is the word after list that sorts each pool by outliers and speed.
const worstFirst = "worst"

// look returns the output of `workers list`: a table of at most columns where possible, or the raw answer.
func (o *operator) look(ctx context.Context, raw, worst bool, columns int) (string, error) {
	var answer json.RawMessage
	if err := o.ask(ctx, http.MethodGet, "/workers", &answer); err != nil || raw {
		return string(answer) + "\n", err
	}
	var r workersReport
	if err := json.Unmarshal(answer, &r); err != nil {
		return "", fmt.Errorf("%s does not answer as a gateway: %w", o.url, err)
	}
	for _, p := range r.Pools {
		if worst {
			slices.SortStableFunc(p.Workers, func(a, b workerRow) int {
				return cmp.Or(-cmp.Compare(min(1, len(a.Outlier)), min(1, len(b.Outlier))), cmp.Compare(cmp.Or(a.slowest(), 1), cmp.Or(b.slowest(), 1)))
			})
		}
	}
	text, err := r.table(true)
	if line, _, _ := strings.Cut(text, "\n"); len(line) > columns {
		return r.table(false)
	}
	return text, err
}

// table returns the report as a table, with or without the workers' addresses.
func (r *workersReport) table(addresses bool) (string, error) {
	b := strings.Builder{}
	address := func(text string) string {
		if addresses {
			return text + "\t"
		}
		return ""
	}
	for _, p := range r.Pools {
		for _, w := range p.Workers {
			if w.State == "down" || w.State == "lost" { // the rest does not apply
				if w.LostFor != nil {
					w.State += " for " + time.Duration(*w.LostFor*float64(time.Second)).Round(time.Second).String()
				}
				fmt.Fprintf(&b, "%s\t%s\t%s\t%s\t%s%d\t-\t-\t-\t-\t-\t-\n",
					cmp.Or(p.Model, "-"), p.Role, w.ID, w.State, address(w.Address), w.Requests)
				continue
			}
			fmt.Fprintf(&b, "%s\t%s\t%s\t%s\t%s%d\t%d/%d\t%d\t%d\t%s\t%s\t%s\n",
				p.Model, p.Role, w.ID, w.State, address(w.Address), w.Requests,
				w.ActiveBlocks, w.TotalBlocks, w.PrefillTokens, w.CachedBlocks, r.events(p.Model+"/"+p.Role, w.ID), w.Circuit, w.speed())
		}
	}
	for _, id := range r.Cordoned {
		if r.find(id) == nil {
			fmt.Fprintf(&b, "-\t-\t%s\tcordoned, away\t%s%s\n", id, address("-"), "-\t-\t-\t-\t-\t-\t-")
		}
	}
	if b.Len() == 0 {
		return "no worker has joined\n", nil
	}
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "MODEL\tROLE\tID\tSTATE\t", address("ADDRESS"), "REQUESTS\tBLOCKS\tPREFILL\tCACHED\tKV EVENTS\tCIRCUIT\tSPEED\n", b.String())
	if len(r.Replicas) > 0 {
		fmt.Fprint(table, "\nGATEWAY\tSTATE\tHEARD\tREQUESTS\n")
		for _, g := range r.Replicas {
			fmt.Fprintf(table, "%s\t%s\t%.1fs ago\t%d\n", g.Name, g.State, g.Heard, g.Requests)
		}
	}
	err := table.Flush()
	return out.String(), err
}

// events returns the distinct states of a worker's KV events over its ranks, joined.
func (r *workersReport) events(pool, id string) string {
	var states []string
	for _, s := range r.Events[pool] {
		if s.Worker == id && !slices.Contains(states, s.State) {
			states = append(states, s.State)
		}
	}
	return cmp.Or(strings.Join(states, "+"), "-")
}

// cordon changes a worker's state and, for a drain, waits.
func (o *operator) cordon(ctx context.Context, verb, id string, s workersSettings, p process) error {
	var got edge.Standing
	action := verb
	if verb == "drain" && s.Move {
		action = "move"
	}
	err := o.ask(ctx, http.MethodPost, "/workers/"+url.PathEscape(id)+"/"+action, &got)
	if no, ok := errors.AsType[*refusal](err); ok && no.code == "worker_not_found" {
		return o.unknown(ctx, id)
	}
	wait := verb == "drain" && s.Wait
	if err == nil && wait {
		err = o.drained(ctx, &got, s.Timeout, p.stderr)
	}
	if err != nil {
		return err
	}
	if s.JSON {
		return json.NewEncoder(p.stdout).Encode(got)
	}
	text := fmt.Sprintf("%s is cordoned; requests on it: %d", id, got.Requests)
	switch {
	case verb == "uncordon":
		text = fmt.Sprintf("%s is no longer cordoned; state: %s", id, got.State)
	case verb == "forget":
		text = id + " is no longer listed by this gateway, unless it registers again"
		got.Kept = ""
	case wait:
		text = id + " is drained: nothing is booked on it"
	}
	text += fates[got.Kept]
	_, err = fmt.Fprintln(p.stdout, text)
	return err
}

// fates explains changes that are not persisted.
var fates = map[replica.Storage]string{
	replica.StoredLater: "\nOther gateways do not have it yet: etcd or NATS is down. It is written on recovery.",
	replica.NotStored:   "\nIt ends with this gateway: there is no etcd, and no group on NATS with JetStream.",
}

// unknown returns the error for an unknown id.
func (o *operator) unknown(ctx context.Context, id string) error {
	var r workersReport
	_ = o.ask(ctx, http.MethodGet, "/workers", &r) // without an answer there is nothing to suggest
	ids := r.Cordoned
	for _, p := range r.Pools {
		for _, w := range p.Workers {
			ids = append(ids, w.ID)
		}
	}
	if near := setting.Nearest(id, ids); near != "" {
		return fmt.Errorf("there is no worker %q; the nearest is %s", id, near)
	}
	return fmt.Errorf("there is no worker %q; `gateway workers list` shows their ids", id)
}

// drainLook is how often a drain checks its worker.
const drainLook = 250 * time.Millisecond

// errDrainLimit is the cause of a drain that exceeds --timeout.
var errDrainLimit = errors.New("the timeout has passed")

// drainLeft estimates the rest of a drain by its pace so far: left of first requests are left. It is empty until one
// has ended, and in the first second.
func drainLeft(first, left int, taken time.Duration) string {
	if left >= first || left == 0 || taken < time.Second {
		return ""
	}
	pace := taken / time.Duration(first-left)
	return fmt.Sprintf(", about %v left", (time.Duration(left) * pace).Round(time.Second))
}

// drained waits until nothing is booked on a worker, writes its progress to out, and updates got.
func (o *operator) drained(ctx context.Context, got *edge.Standing, limit time.Duration, out io.Writer) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errDrainLimit)
		defer cancel()
	}
	shown, began, first := -1, time.Now(), got.Requests
	ticks := time.NewTicker(drainLook)
	defer ticks.Stop()
	for got.Requests > 0 || got.ActiveBlocks > 0 || got.PrefillTokens > 0 {
		if got.Requests != shown {
			shown = got.Requests
			fmt.Fprintf(out, "%s: requests left: %d, blocks: %d%s\n",
				got.Worker, got.Requests, got.ActiveBlocks, drainLeft(first, got.Requests, time.Since(began)))
		}
		var r workersReport
		var err error
		select {
		case <-ctx.Done():
		case <-ticks.C:
			err = o.ask(ctx, http.MethodGet, "/workers", &r)
		}
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, errDrainLimit):
			return fmt.Errorf("%s is cordoned, but after %v (--timeout) requests are still on it: %d", got.Worker, limit, got.Requests)
		case cause != nil:
			return fmt.Errorf("%s is cordoned; the wait for its requests ended: %w", got.Worker, cause)
		case err != nil:
			return err
		}
		row := r.find(got.Worker)
		if row == nil { // it has left
			row = &workerRow{State: "absent"}
		}
		got.State, got.Requests, got.ActiveBlocks, got.PrefillTokens = row.State, row.Requests, row.ActiveBlocks, row.PrefillTokens
	}
	return nil
}

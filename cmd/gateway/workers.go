package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/internal/edge"
)

// workersSettings is what can be set about a look at the workers.
type workersSettings struct {
	AdminURL string        `setting:"admin-url"`
	KeyFile  string        `setting:"admin-key-file"`
	JSON     bool          `setting:"json"`
	Wait     bool          `setting:"wait"`
	Timeout  time.Duration `setting:"timeout"`
	Address  string        `setting:"admin-address"`
	Local    local
}

func workersGroup() settings.Group {
	access := slices.DeleteFunc(settings.AdminGroup().Settings, func(s settings.Setting) bool { return s.Name != "admin-address" })
	return settings.Group{Title: "Administration", Settings: append([]settings.Setting{
		{
			Name: "admin-url", Kind: settings.String, Default: "", Validate: optionalURL,
			Help: "Where the gateway's administration is, as http://HOST:PORT. Empty is this machine: admin-address, or http-host and http-port without one.",
		},
		{Name: "admin-key-file", Kind: settings.String, Default: "", Help: "File whose first key is sent; the gateway's own file serves."},
		{Name: "json", Kind: settings.Bool, Default: "false", Help: "Print the gateway's answer as JSON."},
		{Name: "wait", Kind: settings.Bool, Default: "true", Help: "Off: drain returns at once. On, it waits until nothing is booked on the worker."},
		{
			Name: "timeout", Kind: settings.Duration, Default: "10m", Min: "0s",
			Help: "How long drain waits; the exit status is 1 when it passes, and the worker stays cordoned. 0 waits for as long as it takes.",
		},
	}, access...)}
}

// workersReport is what is shown of GET /workers.
type workersReport struct {
	Pools []struct {
		Model   string
		Role    string
		Workers []workerRow
	}
	Events   map[string][]struct{ Worker, State string } `json:"kv_events"`
	Cordoned []string
}

type workerRow struct {
	ID, State, Address, Circuit string
	Requests                    int
	ActiveBlocks                int `json:"active_blocks"`
	TotalBlocks                 int `json:"total_blocks"`
	PrefillTokens               int `json:"prefill_tokens"`
	CachedBlocks                int `json:"cached_blocks"`
}

// booked reports whether requests hold anything on the worker.
func (w *workerRow) booked() bool { return w.Requests > 0 || w.ActiveBlocks > 0 || w.PrefillTokens > 0 }

// find returns the worker of that id; nil when it is not there.
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

func (r *workersReport) ids() []string {
	ids := slices.Clone(r.Cordoned)
	for _, p := range r.Pools {
		for _, w := range p.Workers {
			ids = append(ids, w.ID)
		}
	}
	return ids
}

// workers shows the workers, takes one out of the choice or back in.
func workers(ctx context.Context, args []string, p process) error {
	var s workersSettings
	set := settings.NewSet(workersGroup(), localGroup()).Beside(besides()...)
	_, words, err := resolveWords(set, "gateway workers list | cordon ID | drain ID | uncordon ID [FLAGS]: see the workers, and take one out of the choice or back in.\n"+
		"A cordoned worker finishes what it has and takes no more, also after a restart; drain cordons and waits until nothing is booked on it.", args, p, &s)
	if err != nil {
		return err
	}
	verb, id, err := verbAndID(words)
	if err != nil {
		return usageError{err}
	}
	base := s.AdminURL
	if base == "" {
		base = s.Local.url()
		if host, port, err := net.SplitHostPort(s.Address); err == nil {
			base = reachable(host, port)
		}
	}
	o, err := newOperator(base, s.KeyFile, p)
	if err != nil {
		return err
	}
	defer o.close()
	if verb == "list" {
		return o.list(ctx, s.JSON, p.stdout)
	}
	return o.cordon(ctx, verb, id, s, p)
}

// verbAndID checks the words of the command line.
func verbAndID(words []string) (verb, id string, err error) {
	verbs := []string{"list", "cordon", "drain", "uncordon"}
	switch {
	case len(words) == 0:
		return "", "", errors.New("say what to do: list, cordon ID, drain ID or uncordon ID")
	case !slices.Contains(verbs, words[0]):
		if near := settings.Nearest(words[0], verbs); near != "" {
			return "", "", fmt.Errorf("there is no %q here; the nearest is %s", words[0], near)
		}
		return "", "", fmt.Errorf("there is no %q here, only list, cordon ID, drain ID and uncordon ID", words[0])
	case words[0] == "list" && len(words) > 1:
		return "", "", fmt.Errorf("list takes no %q", words[1])
	case words[0] == "list":
		return "list", "", nil
	case len(words) == 1:
		return "", "", fmt.Errorf("%s which worker? `gateway workers list` shows their ids", words[0])
	case len(words) > 2:
		return "", "", fmt.Errorf("%s takes one worker; %q is too much", words[0], words[2])
	}
	return words[0], words[1], nil
}

func (o *operator) list(ctx context.Context, raw bool, out io.Writer) error {
	var answer json.RawMessage
	if err := o.ask(ctx, http.MethodGet, "/workers", &answer); err != nil {
		return err
	}
	if raw {
		_, err := fmt.Fprintf(out, "%s\n", answer)
		return err
	}
	var r workersReport
	if err := json.Unmarshal(answer, &r); err != nil {
		return fmt.Errorf("%s does not answer as a gateway: %w", o.url, err)
	}
	rows := [][]string{{"MODEL", "ROLE", "ID", "STATE", "ADDRESS", "REQUESTS", "BLOCKS", "PREFILL", "CACHED", "KV EVENTS", "CIRCUIT"}}
	for _, p := range r.Pools {
		for _, w := range p.Workers {
			rows = append(rows, []string{
				p.Model, p.Role, w.ID, w.State, w.Address, strconv.Itoa(w.Requests),
				fmt.Sprintf("%d/%d", w.ActiveBlocks, w.TotalBlocks), strconv.Itoa(w.PrefillTokens), strconv.Itoa(w.CachedBlocks),
				r.events(p.Model+"/"+p.Role, w.ID), w.Circuit,
			})
		}
	}
	for _, id := range r.Cordoned {
		if r.find(id) == nil {
			rows = append(rows, []string{"-", "-", id, "cordoned, away", "-", "-", "-", "-", "-", "-", "-"})
		}
	}
	if len(rows) == 1 {
		_, err := fmt.Fprintln(out, "no worker has joined")
		return err
	}
	return printTable(out, rows, func(column int) bool { return column >= 5 && column <= 8 })
}

// events is the state of what is known of a worker's cache, the different ones
// of its ranks side by side.
func (r *workersReport) events(pool, id string) string {
	var states []string
	for _, s := range r.Events[pool] {
		if s.Worker == id && !slices.Contains(states, s.State) {
			states = append(states, s.State)
		}
	}
	if len(states) == 0 {
		return "-"
	}
	return strings.Join(states, "+")
}

// printTable aligns columns, numbers to the right.
func printTable(out io.Writer, rows [][]string, number func(column int) bool) error {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if number(i) {
				line += pad + cell + "  "
			} else {
				line += cell + pad + "  "
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// cordon changes a worker's standing and, to drain it, waits.
func (o *operator) cordon(ctx context.Context, verb, id string, s workersSettings, p process) error {
	var got edge.Standing
	err := o.ask(ctx, http.MethodPost, "/workers/"+url.PathEscape(id)+"/"+verb, &got)
	var no *refusal
	if errors.As(err, &no) && no.code == "worker_not_found" {
		return o.unknown(ctx, id)
	}
	if err != nil {
		return err
	}
	if verb == "drain" && s.Wait {
		if err := o.drained(ctx, &got, s.Timeout, p.stderr); err != nil {
			return err
		}
	}
	if s.JSON {
		return json.NewEncoder(p.stdout).Encode(got)
	}
	says := fmt.Sprintf("%s is cordoned; requests on it: %d", id, got.Requests)
	switch {
	case verb == "uncordon":
		says = fmt.Sprintf("%s is cordoned no more; state: %s", id, got.State)
	case verb == "drain" && s.Wait:
		says = id + " is drained: nothing is booked on it"
	}
	_, err = fmt.Fprintln(p.stdout, says)
	return err
}

// unknown is the error for an id that no worker has.
func (o *operator) unknown(ctx context.Context, id string) error {
	var r workersReport
	if err := o.ask(ctx, http.MethodGet, "/workers", &r); err != nil {
		return fmt.Errorf("there is no worker %q", id)
	}
	if near := settings.Nearest(id, r.ids()); near != "" {
		return fmt.Errorf("there is no worker %q; the nearest is %s", id, near)
	}
	if len(r.ids()) > 0 {
		return fmt.Errorf("there is no worker %q; `gateway workers list` shows their ids", id)
	}
	return fmt.Errorf("there is no worker %q, nor any other", id)
}

// drainLook is how often a drain looks.
const drainLook = 250 * time.Millisecond

// drained waits until nothing is booked on a worker and says on out how it
// goes; got is how it stands, and is kept up to date.
func (o *operator) drained(ctx context.Context, got *edge.Standing, limit time.Duration, out io.Writer) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errDrainLimit)
		defer cancel()
	}
	row := workerRow{ID: got.Worker, Requests: got.Requests, ActiveBlocks: got.ActiveBlocks, PrefillTokens: got.PrefillTokens}
	told := -1
	ticks := time.NewTicker(drainLook)
	defer ticks.Stop()
	for row.booked() {
		if row.Requests != told {
			told = row.Requests
			fmt.Fprintf(out, "%s: requests left: %d, blocks: %d\n", row.ID, row.Requests, row.ActiveBlocks)
		}
		select {
		case <-ctx.Done():
			return o.undrained(ctx, row, limit)
		case <-ticks.C:
		}
		var r workersReport
		if err := o.ask(ctx, http.MethodGet, "/workers", &r); err != nil {
			if ctx.Err() != nil {
				return o.undrained(ctx, row, limit)
			}
			return err
		}
		now := r.find(row.ID)
		if now == nil { // it has left, with all that was on it
			now = &workerRow{ID: row.ID, State: "absent"}
		}
		row = *now
		got.State, got.Requests, got.ActiveBlocks, got.PrefillTokens = row.State, row.Requests, row.ActiveBlocks, row.PrefillTokens
	}
	return nil
}

// errDrainLimit says that --timeout has passed.
var errDrainLimit = errors.New("the timeout has passed")

func (o *operator) undrained(ctx context.Context, row workerRow, limit time.Duration) error {
	if errors.Is(context.Cause(ctx), errDrainLimit) {
		return fmt.Errorf("%s is cordoned, but after %v (--timeout) requests are still on it: %d", row.ID, limit, row.Requests)
	}
	return fmt.Errorf("%s is cordoned; nobody waits for it any more: %w", row.ID, context.Cause(ctx))
}

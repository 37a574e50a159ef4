package operations

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery/kubernetes"
	"github.com/tandem-pd/tandem/router/replica"
)

// exposed is a metric as a scrape shows it.
type exposed struct {
	kind   string
	labels []string
}

// exposition is what a gateway exposes that has seen every kind of traffic: by
// the family's name, without the suffixes of a histogram's series.
type exposition map[string]exposed

// scrape reads a registry.
func scrape(t *testing.T, families []*dto.MetricFamily) exposition {
	t.Helper()
	out := exposition{}
	for _, f := range families {
		e := exposed{kind: strings.ToLower(f.GetType().String())}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains(e.labels, l.GetName()) {
					e.labels = append(e.labels, l.GetName())
				}
			}
		}
		slices.Sort(e.labels)
		out[f.GetName()] = e
	}
	return out
}

// series finds what a name in an expression stands for: the family, or one of the series of a histogram.
func (e exposition) series(name string) (labels []string, ok bool) {
	if m, ok := e[name]; ok && m.kind != "histogram" {
		return m.labels, true
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		family, found := strings.CutSuffix(name, suffix)
		if m, ok := e[family]; found && ok && m.kind == "histogram" {
			if suffix == "_bucket" {
				return append([]string{"le"}, m.labels...), true
			}
			return m.labels, true
		}
	}
	return nil, false
}

// trafficked is what a fleet exposes after answers of each form, clients that
// left, calls that failed and requests that were decoded without hand-off.
var trafficked = struct {
	sync.Mutex
	all      exposition
	problems []promlint.Problem
}{}

func afterTraffic(t *testing.T) exposition {
	t.Helper()
	trafficked.Lock()
	defer trafficked.Unlock()
	if trafficked.all != nil {
		return trafficked.all
	}
	cluster := testkit.NewKubernetes(t)
	var own stack.Identity
	own.Cert, own.Key = testkit.NewAuthority(t, "ca").Issue(testkit.Leaf{}).Write(t, t.TempDir(), "gateway")
	f := fleet.New(t, fleet.Options{Group: true, Gateway: func(c *stack.GatewayConfig) {
		c.Workers.Kubernetes = kubernetes.Config{Selector: "app=llm", Server: cluster.URL(), Account: cluster.Account}
		scenario := &fault.Scenario{Seed: 3, Rules: []fault.Rule{{Fault: "wrong_status", Probability: .3, Leg: string(pools.Decode),
			Status: http.StatusInternalServerError}}}
		c.WrapTransport = func(inner http1.Transport) http1.Transport { return fault.Inject(inner, scenario) }
		c.Remote.URLs = []string{"http://127.0.0.1:1"} // no server there
		c.Flow.Queue.Classes = fleet.TwoClasses(t)
		c.Traces.Endpoint = "http://127.0.0.1:1"
		c.Identity = own
		c.SessionTTL = time.Hour
	}})
	for i := range 24 {
		q := fleet.IthQuestion(i)
		if _, err := f.Verdict(q, f.Post(q.Path, q.Body)); err != nil {
			t.Error(err)
		}
	}
	for range 10 { // some of them fail on both decode workers
		f.Post(fleet.CompletionPath, `{"model":"tandem-sim","n":2,"max_tokens":4,"prompt":"`+fleet.Long+`"}`)
	}
	f.Post(fleet.CompletionPath, `{"model":"absent","prompt":"x"}`)
	f.Post(fleet.ChatPath, `{"model":`)
	f.Eventually("the next turn's prompt is computed, or not", func() bool { // an answer that failed has none
		f.Post(fleet.ChatPath, `{"model":"tandem-sim","max_tokens":80,"ignore_eos":true,"messages":[{"role":"user","content":"`+fleet.Long+`"}],`+
			`"nvext":{"agent_hints":{"speculative_prefill":true}}}`)
		_, counted := scrapeOf(t, f)["tandem_frontend_speculative_prefills_total"]
		return counted
	})
	f.Idle()
	// A request is counted after it has given back what it held.
	f.Eventually("the request without a prefill leg is counted", func() bool {
		_, counted := scrapeOf(t, f)["tandem_frontend_not_disaggregated_total"]
		return counted
	})
	other, err := nats.Connect(f.NATS)
	require.NoError(t, err)
	defer other.Close()
	f.Eventually("another gateway is known", func() bool { // once it has spoken, as it does here
		require.NoError(t, other.Publish("tandem.replica.auto.other.say", replica.NewLocal("other", 1).Heartbeat("", time.Second, nil)))
		return f.Value("tandem_replica_peers", "silent")+f.Value("tandem_replica_peers", "waiting")+f.Value("tandem_replica_peers", "whole") > 0
	})
	f.Eventually("the pods are listed", func() bool { _, listed := scrapeOf(t, f)["tandem_kubernetes_pods"]; return listed })
	f.Eventually("the time between two tokens is known", func() bool { // two that come at once have none
		f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":16,"stream":true,"prompt":"`+fleet.Long+`"}`)
		_, known := scrapeOf(t, f)["tandem_frontend_worker_last_inter_token_latency_seconds"]
		return known
	})
	f.Idle()
	families, err := f.Reg.Gather()
	require.NoError(t, err)
	trafficked.problems, err = promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	all := scrape(t, families)
	process, err := observe.NewRegistry().Gather()
	require.NoError(t, err)
	for name, m := range scrape(t, process) {
		all[name] = m
	}
	trafficked.all = all
	return all
}

func scrapeOf(t *testing.T, f *fleet.Fleet) exposition {
	t.Helper()
	families, err := f.Reg.Gather()
	require.NoError(t, err)
	return scrape(t, families)
}

// fromTheScrape are the labels that Prometheus adds.
var fromTheScrape = []string{"instance", "job"}

// wrongs returns the names in an expression that a gateway does not expose, and which of the labels that text shows, as
// {{label}} or {{ $labels.label }}, the expression does not leave.
func (e exposition) wrongs(expr string, texts ...string) (wrongs []string) {
	refs, left, err := promql(expr)
	if err != nil {
		return []string{err.Error()}
	}
	for _, m := range summed.FindAllStringSubmatch(expr, -1) {
		if slices.Contains(ofAll, m[2]) && !strings.Contains(m[1], "instance") && !strings.HasSuffix(expr, "== 0") {
			wrongs = append(wrongs, "every gateway reports all of "+m[2]+": the sum of several gateways' counts them several times")
		}
	}
	var any []string
	for _, r := range refs {
		labels, ok := e.series(r.metric)
		if !ok {
			wrongs = append(wrongs, "no such metric: "+r.metric)
			continue
		}
		any = append(any, labels...)
		for _, l := range r.labels {
			if !slices.Contains(labels, l) && !slices.Contains(fromTheScrape, l) {
				wrongs = append(wrongs, r.metric+" has no label "+l)
			}
		}
	}
	if left != nil {
		any = left
	}
	for _, text := range texts {
		for _, m := range shownLabel.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(any, m[1]) && !slices.Contains(fromTheScrape, m[1]) {
				wrongs = append(wrongs, fmt.Sprintf("%q shows the label %s, which is not left", text, m[1]))
			}
		}
	}
	return wrongs
}

// summed finds what a sum adds up, and ofAll are the gauges that each gateway reports of all workers, with what other
// gateways of its group have booked on them.
var (
	summed = regexp.MustCompile(`sum(?: by \(([^)]*)\) )?\((\w+)(?:\{[^}]*\})?\)`)
	ofAll  = []string{"tandem_frontend_router_workers", "tandem_frontend_worker_active_prefill_tokens",
		"tandem_frontend_worker_cached_blocks"}
)

var shownLabel = regexp.MustCompile(`\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}`)

// dashboard is what of a Grafana dashboard the test looks at.
type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Templating    struct {
		List []struct {
			Name, Type string
			Query      any
			Definition string
		}
	}
	Panels []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ H, W, X, Y int }
		FieldConfig              struct{ Defaults struct{ Unit string } }
		Datasource               struct{ Type, UID string }
		Targets                  []struct {
			RefID, Expr, LegendFormat string
			Datasource                struct{ UID string }
		}
	}
}

var variable = regexp.MustCompile(`\$\{?(\w+)`)

// The dashboard shows what a gateway with traffic exposes, and nothing else.
func TestDashboardNamesWhatThereIs(t *testing.T) {
	raw, err := os.ReadFile("../../../../deploy/grafana/tandem.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(raw, &d))
	assert.True(t, d.UID != "" && d.Title != "" && d.SchemaVersion >= 38,
		"uid %q, title %q, schema version %d: Grafana 10 has 38", d.UID, d.Title, d.SchemaVersion)
	all := afterTraffic(t)
	vars := []string{"__rate_interval"}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			for _, wrong := range all.wrongs(v.Definition) {
				if !strings.HasSuffix(wrong, ": "+v.Name) { // label_values' second word is a label
					t.Errorf("variable %s: %s", v.Name, wrong)
				}
			}
		}
		vars = append(vars, v.Name)
	}
	for _, need := range []string{"datasource", "model", "worker"} {
		assert.True(t, slices.Contains(vars, need), "there is no variable %s", need)
	}
	ids, taken, shown, rows := map[int]bool{}, map[[2]int]string{}, 0, 0
	for _, p := range d.Panels {
		assert.False(t, ids[p.ID], "panel %q: id %d is taken", p.Title, p.ID)
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies on %q or over the edge", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows++
			continue
		}
		if p.Title == "" || !strings.HasSuffix(p.Description, ".") || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 ||
			p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %q lacks a description in sentences, a unit, a query or the data source's variable", p.Title)
		}
		for _, q := range p.Targets {
			shown++
			assert.True(t, q.LegendFormat != "" && q.Datasource.UID == "${datasource}",
				"panel %q: query %s lacks a legend or the data source's variable", p.Title, q.RefID)
			for _, wrong := range all.wrongs(q.Expr, q.LegendFormat) {
				t.Errorf("panel %q: %s", p.Title, wrong)
			}
			for _, m := range variable.FindAllStringSubmatch(q.Expr, -1) {
				assert.True(t, slices.Contains(vars, m[1]), "panel %q: there is no variable %s", p.Title, m[1])
			}
		}
	}
	assert.True(t, rows >= 9 && shown >= 40, "%d rows with %d queries: the dashboard was not read whole", rows, shown)
}

// rules is a rules file of Prometheus.
type rules struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []struct {
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			For         string            `yaml:"for"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

// alerts reads the rules file.
func alerts(t *testing.T) rules {
	t.Helper()
	raw, err := os.ReadFile("../../../../deploy/grafana/alerts.yaml")
	require.NoError(t, err)
	var r rules
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	require.NoError(t, dec.Decode(&r))
	return r
}

func TestAlertsNameWhatThereIs(t *testing.T) {
	all, names := afterTraffic(t), map[string]bool{}
	for _, g := range alerts(t).Groups {
		for _, r := range g.Rules {
			assert.True(t, !names[r.Alert] && r.Alert != "" && g.Name != "",
				"alert %q in group %q: no name, or a name that is taken", r.Alert, g.Name)
			names[r.Alert] = true
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || r.Annotations["summary"] == "" ||
				r.Annotations["description"] == "" {
				t.Errorf("%s lacks a severity, a summary or a description", r.Alert)
			}
			assert.Contains(t, r.Annotations["runbook_url"], "/blob/main/docs/", "%s: its runbook", r.Alert)
			if strings.HasPrefix(r.Expr, "up{") { // Prometheus' own
				continue
			}
			for _, wrong := range all.wrongs(r.Expr, r.Annotations["summary"], r.Annotations["description"]) {
				t.Errorf("%s: %s", r.Alert, wrong)
			}
			for _, m := range metricInText.FindAllString(r.Annotations["description"], -1) {
				assert.Contains(t, all, m, "%s: its description", r.Alert)
			}
		}
	}
	assert.GreaterOrEqual(t, len(names), 5, "alerts: the file was not read whole")
}

// Prometheus' own tool takes the rules, and they fire and end as alerts_test.yaml has it. Debian's package prometheus has
// the tool.
func TestPromtool(t *testing.T) {
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("there is no promtool here: the rules are checked by the tests above alone")
		return
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.Command(tool, args...)
		cmd.Dir = "../../../../deploy/grafana"
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%v: %s", args, out)
	}
}

// TestMetricsAreClean: Prometheus' own linter (`promtool check metrics`) has no complaint.
func TestMetricsAreClean(t *testing.T) {
	afterTraffic(t)
	for _, p := range trafficked.problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// What is wrong is found: the tests above can fail.
func TestWrongsAreFound(t *testing.T) {
	all := exposition{"a": {"gauge", []string{"m"}}, "h": {"histogram", []string{"m"}}, ofAll[0]: {"gauge", []string{"m"}}}
	const severally = "every gateway reports all of tandem_frontend_router_workers: the sum of several gateways' counts them several times"
	tests := []struct{ expr, legend, want string }{
		{`sum by (m) (a{m="x"})`, "{{m}}", ""},
		{`histogram_quantile(0.5, sum by (le, m) (rate(h_bucket[5m])))`, "{{ $labels.m }}", ""},
		{`max by (m) (a) / on (m) group_left () quantile by (m) (0.5, a)`, "{{m}}", ""},
		{`b`, "", "no such metric: b"},
		{`h`, "", "no such metric: h"},
		{`a_bucket`, "", "no such metric: a_bucket"},
		{`a{n="1"}`, "", "a has no label n"},
		{`sum by (n) (a)`, "", "a has no label n"},
		{`sum(a)`, "{{m}}", `"{{m}}" shows the label m, which is not left`},
		{`sum by (le) (h_sum)`, "", "h_sum has no label le"},
		{`sum by (m) (tandem_frontend_router_workers{m="x"})`, "{{m}}", severally},
		{`sum by (m) (tandem_frontend_router_workers) == 0`, "{{m}}", ""},
		{`max by (m) (sum by (instance, m) (tandem_frontend_router_workers))`, "{{m}}", ""},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.want, strings.Join(all.wrongs(tt.expr, tt.legend), "; "), "%s %s", tt.expr, tt.legend)
	}
}

var (
	metricInText = regexp.MustCompile(`\btandem_\w+`)
	metricRow    = regexp.MustCompile("(?m)^\\| `(tandem_\\w+)` \\| (\\w+) \\| ([^|]*) \\| ([^|]+) \\|$")
	alertInText  = regexp.MustCompile(`\bTandem[A-Z]\w+`)
)

// docs/reference/metrics.md documents every metric that a gateway exposes, with its type
// and labels, of no other, and of the alerts that use it.
func TestEveryMetricIsDocumented(t *testing.T) {
	raw, err := os.ReadFile("../../../../docs/reference/metrics.md")
	require.NoError(t, err)
	using := map[string][]string{} // alerts by metric
	for _, g := range alerts(t).Groups {
		for _, r := range g.Rules {
			refs, _, err := promql(r.Expr)
			require.NoError(t, err)
			for _, ref := range refs {
				using[ref.metric] = append(using[ref.metric], r.Alert)
			}
		}
	}
	all, documented := afterTraffic(t), map[string]bool{}
	for _, m := range metricRow.FindAllStringSubmatch(string(raw), -1) {
		name, kind, labels := m[1], m[2], strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' || r == ' ' })
		slices.Sort(labels)
		documented[name] = true
		have, ok := all[name]
		if !ok {
			t.Errorf("%s is documented and not exposed", name)
			continue
		}
		assert.True(t, have.kind == kind && slices.Equal(have.labels, labels),
			"%s is documented as %s %v and is %s %v", name, kind, labels, have.kind, have.labels)
		var alerting []string
		for _, series := range []string{name, name + "_bucket", name + "_sum", name + "_count"} {
			alerting = append(alerting, using[series]...)
		}
		for _, alert := range alerting {
			assert.Contains(t, m[4], alert, "%s: the documents do not name its alert", name)
		}
		for _, alert := range alertInText.FindAllString(m[4], -1) {
			assert.True(t, slices.Contains(alerting, alert),
				"%s: the documents name the alert %s, which does not use it", name, alert)
		}
	}
	for name := range all {
		assert.True(t, !strings.HasPrefix(name, "tandem_") || documented[name],
			"%s %v (%s) is not in docs/reference/metrics.md", name, all[name].labels, all[name].kind)
	}
	for _, name := range metricInText.FindAllString(string(raw), -1) {
		if _, ok := all.series(name); !ok && !documented[name] {
			t.Errorf("docs/reference/metrics.md names %s, which is no metric", name)
		}
	}
}

// docs/reference/metrics.md has a row for each old name.
func TestOldNamesAreDocumented(t *testing.T) {
	raw, err := os.ReadFile("../../../../docs/reference/metrics.md")
	require.NoError(t, err)
	for _, a := range slices.Concat(observe.Aliases, observe.ServiceAliases) {
		assert.Contains(t, string(raw), "\n| `"+a.Old+"` | `"+a.Name+"`",
			"docs/reference/metrics.md does not name %s as the old name of %s", a.Old, a.Name)
	}
}

// The prefix goes before the gateway's own names and no others.
func TestMetricsPrefix(t *testing.T) {
	for _, prefix := range []string{"dynamo_", ""} {
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Gateway: func(c *stack.GatewayConfig) { c.MetricsPrefix = prefix }})
		f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":4,"prompt":"`+fleet.Long+`"}`)
		all := scrapeOf(t, f)
		for _, name := range []string{"frontend_requests_total", "frontend_http_responses_total", "breaker_state",
			"kv_events_messages_total", "build_info"} {
			assert.Contains(t, all, prefix+name)
		}
		for name := range all {
			assert.True(t, strings.HasPrefix(name, prefix) && !strings.Contains(name, "tandem"),
				"prefix %q: there is %s", prefix, name)
		}
	}
}

// Every request that was answered well was disaggregated, and has a prefill
// time, or was not, and has a reason. Every token is counted once.
func TestMetricsAddUp(t *testing.T) {
	f := fleet.New(t, fleet.Options{})
	const requests, tokens = 10, 8
	head := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,"prompt":"%s"`, tokens, fleet.Long)
	for i := range requests {
		f.Post(fleet.CompletionPath, fmt.Sprintf(`%s,"stream":%v}`, head, i%2 == 0))
	}
	f.Post(fleet.CompletionPath, head+`,"n":2}`)
	require.NoError(t, f.Gateway.Roster.Drain("prefill-1", true))
	f.Gateway.Roster.Remove("prefill-2")
	f.Post(fleet.CompletionPath, head+`}`)
	f.Idle()
	f.Eventually("every request is over", func() bool { return f.Value("tandem_frontend_active_requests") == 0 })
	for _, tt := range []struct {
		name string
		with []string
		want float64
	}{
		{"tandem_frontend_requests_total", []string{"success", "ok"}, requests + 2},
		{"tandem_frontend_requests_total", []string{"stream"}, requests / 2},
		{"tandem_frontend_prefill_seconds", nil, requests},
		{"tandem_frontend_not_disaggregated_total", []string{"n"}, 1},
		{"tandem_frontend_not_disaggregated_total", []string{"no_prefill_worker"}, 1},
		{"tandem_frontend_not_disaggregated_total", nil, 2},
		{"tandem_frontend_output_tokens_total", nil, (requests+1)*tokens + 2*tokens},
		{"tandem_frontend_inter_token_latency_seconds", nil, requests / 2 * (tokens - 1)},
		{"tandem_frontend_queued_requests", nil, 0},
		{"tandem_frontend_inflight_requests", nil, 0},
		{"tandem_frontend_stage_requests", nil, 0},
		{"tandem_component_router_requests_started_total", []string{"prefill"}, requests},
		{"tandem_component_router_requests_total", []string{"prefill"}, requests},
		{"tandem_component_router_requests_total", []string{"decode"}, requests + 2},
		{"tandem_router_overhead_total_seconds", nil, requests + 2},
		{"tandem_frontend_router_workers", []string{"prefill", "up"}, 0},
		{"tandem_frontend_router_workers", []string{"prefill", "draining"}, 1},
		{"tandem_frontend_router_workers", []string{"decode", "up"}, 2},
		{"tandem_desired_workers", []string{"decode"}, 2},
		{"tandem_build_info", []string{"test"}, 1},
	} {
		assert.Equal(t, tt.want, f.Value(tt.name, tt.with...), "%s %v", tt.name, tt.with)
	}
}

// reference is one metric that an expression names, with the labels that it is selected or grouped by.
type reference struct {
	metric string
	labels []string
}

var (
	// promValue is what a label is compared with, ranges, and what two sides are joined by.
	promValue = regexp.MustCompile(`"[^"]*"|\[[^]]*\]|\b(on|group_left) \([^)]*\)`)
	promWord  = regexp.MustCompile(`([a-z_]+)(?: by \(([^)]*)\) )?\(|([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?|[()]`)
	promLabel = regexp.MustCompile(`[a-zA-Z_]\w*`)

	promAggregates = []string{"sum", "max", "min", "avg", "count", "quantile"}
	promFunctions  = append([]string{"rate", "increase", "histogram_quantile", "label_values", "clamp_min", "absent", "changes"}, promAggregates...)
)

// promql finds the metrics of an expression, and the labels that its groupings leave, which is nil where it has none.
// It knows the words of PromQL that the dashboard and the rules need, and takes the others for functions or metrics
// that there are not. A grouping stands before what it groups.
func promql(expr string) (found []reference, left []string, err error) {
	var around [][]string // the groupings of the parentheses that are open
	for _, m := range promWord.FindAllStringSubmatch(promValue.ReplaceAllString(expr, ""), -1) {
		switch function, by, metric, selector := m[1], promLabel.FindAllString(m[2], -1), m[3], m[4]; {
		case metric != "":
			labels := append(promLabel.FindAllString(selector, -1), slices.Concat(around...)...)
			found = append(found, reference{metric, labels})
		case m[0] == ")" && len(around) > 0:
			around = around[:len(around)-1]
		case m[0] != "(" && !slices.Contains(promFunctions, function):
			return nil, nil, fmt.Errorf("%q is no function that this test knows", m[0])
		default:
			around = append(around, by)
			if slices.Contains(promAggregates, function) {
				left = append(append([]string{}, left...), by...)
			}
		}
	}
	if len(around) > 0 {
		return nil, nil, fmt.Errorf("parentheses do not match")
	}
	return found, left, nil
}

func TestMain(m *testing.M) { os.Exit(fleet.Main(m)) }

package edge

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

func TestParseHints(t *testing.T) {
	for _, c := range []struct {
		text string
		keys bool
		want Hints
	}{
		{"none", true, Hints{}}, {"all", true, Hints{All: true}}, {"auto", true, Hints{}}, {"auto", false, Hints{All: true}},
		{"priority<=0", true, Hints{}}, {"priority<=7", true, Hints{Priority: 7}}, {"priority<=2147483647", true, Hints{Priority: 1<<31 - 1}},
	} {
		got, err := ParseHints(c.text, c.keys)
		assert.NoError(t, err, c.text)
		assert.Equal(t, c.want, got, "%s, keys %t", c.text, c.keys)
	}
	for _, text := range []string{"", "some", "priority", "priority<5", "priority<=", "priority<=-1", "priority<=2147483648",
		"priority<=1.5", "ALL"} {
		got, err := ParseHints(text, false)
		assert.Error(t, err, text)
		assert.False(t, got.All, text)
	}
}

// hinting is a request's body with that nvext.
func hinting(nvext string) string {
	return `{"model":"m","prompt":"x","nvext":` + nvext + `}`
}

// hinted is every hint, with what becomes of it below all: refused by that field, or
// ignored.
var hinted = []struct {
	name, header, nvext string
	refused, ignored    string
}{
	{"worker by header", "X-Dynamo-Worker-Instance-Id: w", `{}`, "x-dynamo-worker-instance-id", ""},
	{"prefill by header", "X-Dynamo-Prefill-Instance-Id: w", `{}`, "x-dynamo-prefill-instance-id", ""},
	{"rank by header", "X-Dynamo-Dp-Rank: 0", `{}`, "x-dynamo-dp-rank", ""},
	{"prefill's rank by header", "X-Dynamo-Prefill-Dp-Rank: 0", `{}`, "x-dynamo-prefill-dp-rank", ""},
	{"backend", "", `{"backend_instance_id":"w"}`, "nvext.backend_instance_id", ""},
	{"decode", "", `{"decode_worker_id":"w"}`, "nvext.decode_worker_id", ""},
	{"prefill", "", `{"prefill_worker_id":"w"}`, "nvext.prefill_worker_id", ""},
	{"rank", "", `{"dp_rank":0}`, "nvext.dp_rank", ""},
	{"prefill's rank", "", `{"prefill_dp_rank":0}`, "nvext.prefill_dp_rank", ""},
	{"required taints", "", `{"routing_constraints":{"required_taints":["a"]}}`, "nvext.routing_constraints.required_taints", ""},
	{"preferred taints", "", `{"routing_constraints":{"preferred_taints":["a"]}}`, "nvext.routing_constraints.preferred_taints", ""},
	{"override", "", `{"router_config_override":{"track_prefill_tokens":false}}`, "nvext.router_config_override", ""},
	{"query", "", `{"annotations":["query_instance_id"],"extra_fields":["routing"]}`, "nvext.annotations", ""},
	{"query with a colon", "", `{"annotations":["query_instance_id:"]}`, "nvext.annotations", ""},
	{"routing", "", `{"extra_fields":["worker_id","routing"]}`, "nvext.extra_fields", ""},
	{"priority by header", "X-Dynamo-Request-Priority: 9", `{}`, "", "x-dynamo-request-priority"},
	{"strict by header", "X-Dynamo-Request-Strict-Priority: 4294967295", `{}`, "", "x-dynamo-request-strict-priority"},
	{"policy class", "X-Dynamo-Meta-Policy-Class: gold", `{}`, "", "x-dynamo-meta-policy-class"},
	{"priority", "", `{"agent_hints":{"priority":2147483647}}`, "", "nvext.agent_hints.priority"},
	{"strict", "", `{"agent_hints":{"strict_priority":1}}`, "", "nvext.agent_hints.strict_priority"},
	{"expected length", "", `{"agent_hints":{"osl":1}}`, "", "nvext.agent_hints.osl"},
	{"target", "", `{"router":{"ttft_target":500}}`, "", "nvext.router.ttft_target"},
	{"vLLM's priority", "", `{},"priority":-5`, "", "priority"},
	{"vLLM's default priority", "", `{},"priority":0`, "", ""},
	{"an annotation of Dynamo's", "", `{"annotations":["llm_metrics"]}`, "", "nvext.annotations"},
	{"nothing", "", `{"extra_fields":["worker_id","timing"],"cache_salt":"s","agent_hints":{"priority":-5,"strict_priority":0}}`, "", ""},
}

// TestHintsByPrivilege sends every hint in every form with each kind of key: a
// client's counts for nothing by default, an operator's and, without keys, anybody's
// counts as it is.
func TestHintsByPrivilege(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	client, admin := keyFile(t, clientKey), keyFile(t, adminKey)
	keyed := func(c *Config) { c.APIKeyFile, c.AdminKeyFile = client, admin }
	to := func(hints string) option { return func(c *Config) { c.ClientHints = hints } }
	for _, s := range []struct {
		name     string
		settings []option
		key      string
		all      bool
	}{
		{"a client's key", []option{keyed}, key(clientKey), false},
		{"an operator's key", []option{keyed}, key(adminKey), true},
		{"a client's key, all", []option{keyed, to("all")}, key(clientKey), true},
		{"no keys", nil, "", true},
		{"no keys, none", []option{to("none")}, "", false},
	} {
		sv := serve(t, loopback(t), keeps(calls), s.settings...)
		for _, h := range hinted {
			t.Run(s.name+"/"+h.name, func(t *testing.T) {
				resp, text := sv.ask(post(hinting(h.nvext), h.header, s.key))
				if !s.all && h.refused != "" {
					assert.Equal(t, h.refused, wantError(t, resp, text, 403, "hint_forbidden")["param"])
					assert.Contains(t, text, "--client-hints")
					return
				}
				got, want := <-calls, h.ignored
				never := want == "priority" || want == "nvext.annotations" // has an effect
				if s.all && !never {
					want = ""
				}
				assert.Equal(t, 200, resp.StatusCode, text)
				assert.Equal(t, want, resp.Header.Get("X-Tandem-Ignored-Hints"))
				assert.Equal(t, want, strings.Join(got.IgnoredHints, ","), "to the log")
				x := &got.Request.Nvext
				high := func(p *int32) bool { return p != nil && *p > 0 }
				strict := func(p *uint32) bool { return p != nil && *p > 0 }
				counts := high(got.Priority) || high(x.Priority) || strict(got.StrictPriority) || strict(x.StrictPriority) || x.OSL != nil ||
					x.TTFTTarget > 0 || got.PolicyClass != ""
				assert.Equal(t, s.all && h.ignored != "" && !never, counts, "the hint counts")
			})
		}
	}
}

// The next turn's prompt is computed ahead for those whose hints count.
func TestNextTurnByPrivilege(t *testing.T) {
	for _, all := range []bool{false, true} {
		req, err := openai.Limits{}.Scan(openai.Chat,
			[]byte(`{"messages":[{"role":"user","content":"x"}],"nvext":{"agent_hints":{"speculative_prefill":true}}}`))
		require.NoError(t, err)
		call := &handoff.Call{Request: req}
		require.Nil(t, Hints{All: all, Priority: 9}.apply(call))
		assert.Equal(t, all, req.Nvext.SpeculativePrefill)
		assert.Equal(t, all, !slices.Contains(call.IgnoredHints, "nvext.agent_hints.speculative_prefill"))
	}
}

// TestSessionsOfAnyClient: a session is named by header, by nvext or by OpenAI's field, the first of them that is there,
// whatever hints count.
func TestSessionsOfAnyClient(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), keeps(calls), func(c *Config) { c.ClientHints = "none" })
	for _, tc := range []struct{ body, header, byHeader, inBody string }{
		{`"nvext":{}`, "", "", ""},
		{`"prompt_cache_key":"k"`, "", "", "k"},
		{`"prompt_cache_key":"k","nvext":{"session_id":"n"}`, "", "", "n"},
		{`"prompt_cache_key":"","nvext":{"session_id":"n"}`, "X-Session-Id: h", "h", "n"},
		{`"prompt_cache_key":"k"`, "x-dynamo-session-id: d", "d", "k"},
		{`"nvext":{}`, "X-Session-ID: h\r\nX-Dynamo-Session-ID: d", "d", ""},
		{`"nvext":{}`, "X-Session-Id: h\r\nX-Claude-Code-Session-Id: c", "c", ""},
		{`"nvext":{}`, "X-Claude-Code-Session-Id: c\r\nX-Claude-Code-Agent-Id: a", "c/a", ""},
		{`"nvext":{}`, "X-Claude-Code-Agent-Id: a", "", ""},
		{`"nvext":{}`, "session_id: old\r\nthread-id: t", "t", ""},
		{`"nvext":{}`, "session_id: old", "old", ""},
		{`"nvext":{}`, "X-Multi-Turn-Session-Id: m\r\nX-Session-Affinity: a", "a", ""},
	} {
		resp, text := sv.ask(post(`{"model":"m","prompt":"x",`+tc.body+`}`, tc.header))
		if got := <-calls; resp.StatusCode != 200 || got.Session != tc.byHeader || got.Request.Session != tc.inBody ||
			resp.Header.Get("X-Tandem-Ignored-Hints") != "" {
			t.Errorf("%s %s: %d, sessions %q and %q: %s", tc.body, tc.header, resp.StatusCode, got.Session, got.Request.Session, text)
		}
	}
	sv.refuses(post(`{"model":"m","prompt":"x","nvext":{"session_id":""}}`), 400, "")
}

// TestPrioritiesUpToABound: those above it count as the bound, strict ones not at all.
func TestPrioritiesUpToABound(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), keeps(calls), func(c *Config) { c.ClientHints = "priority<=5" })
	for _, tc := range []struct {
		priority, counts int32
		sign             string
	}{{-3, -3, ""}, {5, 5, ""}, {6, 5, "nvext.agent_hints.priority"}} {
		resp, _ := sv.ask(post(hinting(fmt.Sprintf(`{"agent_hints":{"priority":%d}}`, tc.priority))))
		if p := (<-calls).Request.Nvext.Priority; p == nil || *p != tc.counts || resp.Header.Get("X-Tandem-Ignored-Hints") != tc.sign {
			t.Errorf("priority %d counts as %v, sign %q", tc.priority, p, resp.Header.Get("X-Tandem-Ignored-Hints"))
		}
	}
	resp, _ := sv.ask(post(hinting(`{"agent_hints":{"strict_priority":1,"priority":9}}`), "X-Dynamo-Request-Priority: 8"))
	got := <-calls
	if want := "x-dynamo-request-priority, nvext.agent_hints.priority, nvext.agent_hints.strict_priority"; resp.Header.Get("X-Tandem-Ignored-Hints") != want ||
		*got.Priority != 5 || got.Request.Nvext.StrictPriority != nil {
		t.Errorf("sign %q, %+v", resp.Header.Get("X-Tandem-Ignored-Hints"), got)
	}
}

// TestEveryHintIsDecided has a new field of nvext, or of a call, decided on: it is a
// hint that is held to the setting, or harmless in a client's hands.
func TestEveryHintIsDecided(t *testing.T) {
	decided := map[reflect.Type][]string{
		reflect.TypeFor[openai.Nvext](): {
			// held
			"ExtraFields", "Annotations", "Priority", "StrictPriority", "OSL", "SpeculativePrefill", "TTFTTarget", "BackendInstanceID", "DecodeWorkerID",
			"PrefillWorkerID",
			"DPRank", "PrefillDPRank", "RequiredTaints", "PreferredTaints", "Override",
			// without an effect on other requests
			"CacheSalt",
			// among workers that nothing but load tells apart, and within a bound of it; where the operator has sessions bound,
			// up to the limits of their worker
			"SessionID",
		},
		reflect.TypeFor[handoff.Pins](): {"Worker", "Prefill", "Rank", "PrefillRank"},
	}
	for kind, names := range decided {
		for i := range kind.NumField() {
			if name := kind.Field(i).Name; !slices.Contains(names, name) {
				t.Errorf("%v.%s: may any client use it? Decide in Hints.apply and here", kind, name)
			}
		}
	}
}

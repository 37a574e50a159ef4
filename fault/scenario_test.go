package fault

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

func TestParseScenario(t *testing.T) {
	s, err := ParseScenario("f.yaml", []byte(`
seed: 18446744073709551615
rules:
  - {fault: refuse}
  - fault: stall
    probability: 0.25
    leg: decode
    worker: "decode-*"
    after_events: 3
    delay: 1m30s
  - {fault: reset, after_bytes: 100}
  - {fault: wrong_status, status: 429}
  - {fault: slow_drip, where: "*/decode-1", at: 10s, for: 5s, rate: 100}
`))
	want := &Scenario{Seed: math.MaxUint64, Rules: []Rule{
		{Fault: "refuse", Probability: 1},
		{Fault: "stall", Probability: .25, Leg: string(pools.Decode), Worker: "decode-*", AfterEvents: 3, Delay: 90 * time.Second},
		{Fault: "reset", Probability: 1, AfterBytes: 100},
		{Fault: "wrong_status", Probability: 1, Status: 429},
		{Fault: "slow_drip", Probability: 1, Where: "*/decode-1", At: 10 * time.Second, For: 5 * time.Second, Rate: 100},
	}}
	assert.True(t, err == nil && reflect.DeepEqual(s, want), "%+v, %v", s, err)
}

// What every file of this kind is refused for is internal/setting's.
func TestParseScenarioRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "f.yaml rules: is empty: a scenario has a list of rules"},
		{"a list", "- fault: refuse\n", "f.yaml:1: is a list, not a mapping"},
		{"no rules", "seed: 1\n", "f.yaml:1 rules: is empty: a scenario has a list of rules"},
		{"empty rules", "rules: []\n", "f.yaml:1 rules: is empty: a scenario has a list of rules"},
		{"an unknown key", "sead: 1\nrules: [{fault: refuse}]\n", "f.yaml:1 sead: there is no such key; the nearest is seed"},
		{"an unknown key of a rule", "rules:\n- fault: refuse\n  probabilty: 1\n",
			"f.yaml:3 rules[0].probabilty: there is no such key; the nearest is probability"},
		{"no fault", "rules:\n- probability: 1\n", "f.yaml:2 rules[0].fault: is missing: one of delay, "},
		{"an unknown fault", "rules:\n- fault: tuncate\n", `f.yaml:2 rules[0].fault: there is no such fault; the nearest is truncate`},
		{"probability over 1", "rules:\n- fault: refuse\n  probability: 30\n", "f.yaml:3 rules[0].probability: is 30, not above 0 and at most 1"},
		{"probability nan", "rules:\n- fault: refuse\n  probability: .nan\n", "f.yaml:3 rules[0].probability: is NaN, not above 0 and at most 1"},
		{"another leg", "rules:\n- fault: refuse\n  leg: both\n", `f.yaml:3 rules[0].leg: is "both", not prefill, decode or release`},
		{"an empty leg", "rules:\n- fault: refuse\n  leg: \"\"\n", "f.yaml:3 rules[0].leg: is empty: leave the key out for all"},
		{"a leg that cannot be", "rules:\n- fault: kv_gone\n  leg: prefill\n",
			"f.yaml:3 rules[0].leg: kv_gone cannot befall prefill, only decode"},
		{"no glob", "rules:\n- fault: refuse\n  worker: \"[a\"\n", `f.yaml:3 rules[0].worker: "[a" is no glob: syntax error in pattern`},
		{"negative events", "rules:\n- fault: stall\n  after_events: -1\n", "f.yaml:3 rules[0].after_events: is -1, not from 0 to 1073741824"},
		{"a delay too long", "rules:\n- fault: delay\n  delay: 100h\n", "f.yaml:3 rules[0].delay: is 100h0m0s, not from 0 to 1h0m0s"},
		{"no delay", "rules:\n- {probability: 1,\n   fault: delay}\n",
			"f.yaml:2 rules[0].delay: is missing: how long the call is held up, as 250ms"},
		{"a good status", "rules:\n- fault: wrong_status\n  status: 200\n", "f.yaml:3 rules[0].status: is 200, not from 300 to 599"},
		{"a field of another fault", "rules:\n- fault: refuse\n  status: 500\n", "f.yaml:3 rules[0].status: means nothing to refuse"},
		{"a time before the start", "rules:\n- fault: refuse\n  at: -1s\n", "f.yaml:3 rules[0].at: is -1s, not from 0 to 1h0m0s"},
		{"too long", "rules:\n- fault: refuse\n  for: 2h\n", "f.yaml:3 rules[0].for: is 2h0m0s, not from 0 to 1h0m0s"},
		{"for no time", "rules:\n- fault: refuse\n  for: 0s\n", "f.yaml:3 rules[0].for: is 0: leave the key out for a rule without end"},
		{"nowhere", "rules:\n- fault: refuse\n  where: \"\"\n", "f.yaml:3 rules[0].where: is empty: leave the key out for all"},
		{"half a place", "rules:\n- fault: refuse\n  where: decode-1\n",
			`f.yaml:3 rules[0].where: is "decode-1", not LEG/WORKER, as decode/decode-*`},
		{"two places", "rules:\n- fault: refuse\n  leg: decode\n  where: \"*/decode-1\"\n",
			"f.yaml:4 rules[0].where: takes the place of leg and worker: give it or them"},
		{"rate 0", "rules:\n- fault: slow_drip\n  rate: 0\n", "f.yaml:3 rules[0].rate: is 0, not from 1 to 1073741824"},
		{
			"several at once", "rules:\n- fault: refus\n- fault: delay\n  delay: 2h\n",
			"f.yaml:2 rules[0].fault: there is no such fault; the nearest is refuse\n" + "f.yaml:4 rules[1].delay: is 2h0m0s, not from 0 to 1h0m0s",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := ParseScenario("f.yaml", []byte(c.text))
			assert.True(t, err != nil && strings.HasPrefix(err.Error(), c.want) && s == nil, "got  %v\nwant %s", err, c.want)
			assert.Equal(t, strings.Contains(c.want, "\n"), strings.Contains(err.Error(), "\n"),
				"several errors where one is wanted, or the reverse: %v", err)
			var at *setting.Error
			assert.True(t, errors.As(err, &at) && at.File == "f.yaml", "%T is no *conf.Error", err)
		})
	}
	many := "rules:\n" + strings.Repeat("- fault: refuse\n", maxRules+1)
	_, err := ParseScenario("f.yaml", []byte(many))
	assert.ErrorContains(t, err, "the limit is 1000")
}

// No file makes the parser panic; what it refuses it places, and what it
// accepts can be injected.
func FuzzScenario(f *testing.F) {
	for _, seed := range []string{
		"", "seed: 1\nrules: [{fault: refuse}]\n", "rules:\n- fault: stall\n  delay: 2s\n  after_events: 3\n",
		"rules: &a [*a]", "rules:\n- <<: {fault: refuse}\n", "? [a]\n: b\n", "rules:\n- fault: wrong_status\n  status: 0x1F4\n",
		"rules: [{}]\n---\n",
		"rules:\n- {fault: slow_drip, where: \"*/decode-1\", at: 10s, for: 5s, rate: 100}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseScenario("f", data)
		var at *setting.Error
		switch {
		case err != nil && (!errors.As(err, &at) || s != nil):
			t.Fatalf("%v, %v", s, err)
		case err == nil:
			w := streamer()
			require.True(t, Inject(w, s) != http1.Transport(w), "accepted without a rule")
		}
	})
}

package house

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// room is a package of ours: how high it stands, and what it may import of
// ours beside. A room never imports its own level or a higher one unless named.
type room struct {
	level int
	may   []string
}

// below stands for every room of a lower level. Telemetry is not among them:
// rooms take a *slog.Logger and a prometheus.Registerer, and only cmd/gateway
// knows where those come from.
const below = "everything below"

const telemetry = "internal/telemetry"

// rooms is the import table. A new package is added here, with the fewest
// arrows that it can do with, and to the table in ARCHITECTURE.md if it is one.
var rooms = map[string]room{
	"pools":                {0, nil},
	"queue":                {0, nil},
	"router/index":         {0, nil},
	"router/load":          {0, nil},
	"router/events/zmtp":   {0, nil},
	"internal/openai":      {0, nil},
	"internal/tokens":      {0, nil},
	"internal/upstream":    {0, nil},
	telemetry:              {0, nil},
	"internal/house":       {0, nil},
	"internal/browser":     {0, nil},
	"internal/listen":      {1, []string{"internal/loglimit"}},
	"internal/loglimit":    {0, nil},
	"internal/scratch":     {0, nil},
	"cmd/gateway/settings": {0, nil},

	"fault":           {1, []string{"internal/upstream"}},
	"internal/relay":  {1, []string{"internal/openai"}},
	"pools/discovery": {1, []string{"pools", "internal/scratch", "internal/upstream"}}, // upstream knows our own want from a worker's failure
	"router":          {1, []string{"pools", "router/index", "router/load"}},
	"router/events":   {1, []string{"router/index", "internal/tokens", "internal/scratch", "router/events/zmtp"}},
	"internal/replay": {1, []string{"internal/openai", "internal/tokens"}},

	"internal/engine": {2, []string{"fault", "internal/openai", "internal/tokens"}},
	"router/remote":   {2, []string{"pools", "router", "fault"}},
	"prefill":         {2, legs},
	"decode":          {2, legs},

	"handoff": {3, []string{below}},
	"internal/simulate": {3, []string{
		"pools", "queue", "router", "router/index", "router/load", "internal/engine", "internal/replay", "internal/tokens",
	}},

	"internal/edge":    {4, []string{below}},
	"internal/console": {4, []string{below}},
	"internal/service": {4, []string{below}},

	"cmd/gateway/stack":          {5, []string{below, telemetry}},
	"cmd/gateway":                {6, []string{below, telemetry}},
	"cmd/gateway/e2e":            {6, []string{below, telemetry}},
	"deploy/compose/run":         {6, []string{"internal/engine", "internal/tokens"}}, // to know each answer beforehand
	"deploy/compose/images/nats": {0, nil},
	"deploy/compose/images/etcd": {0, nil},
	"cmd/gateway/openaiclient":   {6, []string{below, telemetry}},
	"bench":                      {6, []string{below, telemetry}},
	"bench/events": {6, []string{
		"router/events", "router/events/zmtp", "router/index", "internal/engine", "internal/replay", "internal/tokens",
	}},
}

// legs is what prefill and decode share.
var legs = []string{"pools", "router", "router/load", "fault", "internal/openai", "internal/upstream", "internal/relay"}

// allowed says whether a file of the room from may import the room to; if not,
// why.
func allowed(from, to string) error {
	r, ok := rooms[from]
	if !ok {
		return fmt.Errorf("the package %q is not in the table: add it to rooms in internal/house/imports_test.go, with what it may import", from)
	}
	target, ok := rooms[to]
	if !ok {
		return fmt.Errorf("it imports %q, which is not in the table: add it to rooms in internal/house/imports_test.go", to)
	}
	if slices.Contains(r.may, to) {
		return nil
	}
	if slices.Contains(r.may, below) && target.level < r.level && to != telemetry {
		return nil
	}
	return fmt.Errorf("%s may not import %s: hand what it needs in from cmd/gateway as a func or an interface that %[1]s declares, or argue for the arrow in rooms in internal/house/imports_test.go", from, to)
}

// Tests obey the same arrows as the code they test, so that a room can be
// understood without those above it. What needs more stands in cmd/gateway/e2e.
func TestImportsFollowTheTable(t *testing.T) {
	for _, s := range load(t).sources {
		if s.generator() {
			continue
		}
		if _, ok := rooms[s.room]; !ok {
			t.Errorf("%s: %v", s.path, allowed(s.room, s.room))
			continue
		}
		for _, spec := range s.ast.Imports {
			to, ok := ours(importPath(spec))
			if !ok || to == s.room { // an external test package imports its own
				continue
			}
			if err := allowed(s.room, to); err != nil {
				t.Errorf("%s: %v", s.at(spec.Pos()), err)
			}
		}
	}
}

// Every arrow of the table leads down, so that the table itself has no cycle.
func TestTheTableLeadsDown(t *testing.T) {
	for name, r := range rooms {
		for _, to := range r.may {
			target, ok := rooms[to]
			switch {
			case to == below:
			case !ok:
				t.Errorf("%s may import %s, which is no room", name, to)
			case target.level >= r.level:
				t.Errorf("%s (level %d) may import %s (level %d)", name, r.level, to, target.level)
			}
		}
	}
}

func TestAllowedRefuses(t *testing.T) {
	tests := []struct{ from, to, want string }{
		{"router", "pools", ""},
		{"router", "queue", "router may not import queue"},
		{"router", "router/events", "router may not import router/events"},
		{"pools", "router", "pools may not import router"},
		{"handoff", "queue", ""},
		{"handoff", "internal/edge", "handoff may not import internal/edge"},
		{"handoff", "internal/simulate", "handoff may not import internal/simulate"},
		{"internal/edge", telemetry, "internal/edge may not import internal/telemetry"},
		{"cmd/gateway", telemetry, ""},
		{"cmd/gateway", "cmd/gateway/settings", ""},
		{"cmd/gateway/settings", "router", "cmd/gateway/settings may not import router"},
		{"internal/kitchen", "pools", `the package "internal/kitchen" is not in the table: add it to rooms`},
		{"cmd/gateway", "internal/kitchen", `it imports "internal/kitchen", which is not in the table`},
	}
	for _, tt := range tests {
		t.Run(tt.from+" to "+tt.to, func(t *testing.T) {
			got := fmt.Sprint(allowed(tt.from, tt.to))
			if tt.want == "" {
				tt.want = "<nil>"
			}
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// libraries are the rooms that other programs may use without taking the
// gateway's dependencies over, and transports are those dependencies.
var (
	libraries  = []string{"router", "router/index", "router/load", "pools", "queue", "fault"}
	transports = []string{"go.etcd.io/", "github.com/nats-io/", "github.com/gofiber/", "github.com/valyala/fasthttp", "google.golang.org/grpc"}
)

func TestLibrariesPullInNoTransport(t *testing.T) {
	direct := map[string]map[string]bool{} // room to all it imports
	for _, s := range load(t).sources {
		if !s.code() {
			continue
		}
		if direct[s.room] == nil {
			direct[s.room] = map[string]bool{}
		}
		for _, p := range s.imports() {
			direct[s.room][p] = true
		}
	}
	for _, library := range libraries {
		if direct[library] == nil {
			t.Errorf("there is no room %s", library)
		}
		for _, chain := range chains(direct, library) {
			last := chain[len(chain)-1]
			if slices.ContainsFunc(transports, func(barred string) bool { return strings.HasPrefix(last, barred) }) {
				t.Errorf("%s pulls a transport in: %s", library, strings.Join(chain, " -> "))
			}
		}
	}
}

func TestChainsGoThroughOurRoomsOnly(t *testing.T) {
	direct := map[string]map[string]bool{
		"a": {module + "/b": true, "fmt": true},
		"b": {module + "/a": true, "go.etcd.io/etcd": true},
	}
	want := [][]string{{"a", "fmt"}, {"a", "b"}, {"a", "b", "a"}, {"a", "b", "go.etcd.io/etcd"}}
	got := chains(direct, "a")
	if !slices.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// chains returns, for each thing that the room from imports directly or through
// our other rooms, the way there. A room is entered once.
func chains(direct map[string]map[string]bool, from string) [][]string {
	var found [][]string
	entered := map[string]bool{}
	var walk func(way []string)
	walk = func(way []string) {
		at := way[len(way)-1]
		if entered[at] {
			return
		}
		entered[at] = true
		for _, p := range slices.Sorted(maps.Keys(direct[at])) {
			to, own := ours(p)
			if !own {
				to = p
			}
			next := append(slices.Clone(way), to)
			found = append(found, next)
			if own {
				walk(next)
			}
		}
	}
	walk([]string{from})
	return found
}

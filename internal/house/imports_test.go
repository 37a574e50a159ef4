package house

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A storey is a part of the tree at one height: its packages, each with what it may import of ours. Imports run down:
// to lower storeys, and within a storey along arrows that are named and go in no circle.
type storey map[string][]string

// below stands for every product package of the lower storeys.
const below = "everything below"

// ground serves every storey and imports nothing of the rooms.
var ground = storey{
	"internal/openai": {},
	"internal/tokens": {},
	"kv/index":        {"internal/setting", "kv/wire"},
	"internal/jinja":  {},
	"internal/http1":  {"internal/setting", "internal/guard", "internal/openai"},
	"internal/house":  {},
	"internal/auth":   {},
	// Certificates of files.
	"internal/certs":    {"lab/testkit", "internal/metrics", "internal/setting"},
	"lab/testkit":       kv, // runs deploy/compose/security/etcd-users.sh, for tests and compose
	"internal/guard":    {},
	"internal/setting":  {"internal/terminal"},
	"internal/terminal": {},
	"internal/metrics":  {},
	"internal/speed":    {},
	// Traces.
	"internal/trace": {"internal/guard", "internal/metrics", "lab/testkit", "internal/setting"},
	// KV events, from the bytes up.
	"kv/wire":          {},
	"kv/zmq":           append(kv, "internal/guard"),
	"internal/natsbus": append(kv, "internal/setting", "internal/guard"),
	"kv/view":          append(kv, "lab/testkit"),
	"kv/follow": append(kv, "internal/natsbus", "kv/view", "lab/testkit", "kv/zmq", "internal/metrics", "internal/setting",
		"internal/guard"),
}

// rooms are the parts of a request's way.
var rooms = storey{
	"pools":       {"internal/setting"},
	"queue":       {"internal/setting"}, // conf reads the file of policy classes
	"router/load": {"kv/index"},
	"kv/overlap":  {"kv/index", "internal/setting", "pools"},
	"fault":       {"pools", "internal/setting", "internal/metrics", "internal/http1", "internal/openai"},
	// injects failures into transports
	"pools/discovery": {"internal/setting", "pools", "internal/guard", "internal/http1"},
	// upstream separates this machine's shortages from a worker's failures
	// Pods, in a package of its own: etcd's client is no part of it.
	"pools/discovery/kubernetes": {"internal/setting", "pools", "pools/discovery", "internal/guard", "internal/metrics", "lab/testkit"},
	"router":                     {"kv/index", "internal/setting", "pools", "router/load", "kv/overlap"},
	"router/placement":           {"pools", "router"},
	"router/planner":             {"pools"},
	// permits and orders come in as interfaces
	"router/replica": {"internal/setting", "pools", "queue", "router/load", below, "router"},
	// over NATS
	"router/feed": {below, "pools", "router", "kv/index", "kv/overlap"},
	// what KV events report, into indexes and routers
	"models": {"kv/index", "internal/openai", "internal/jinja", "internal/metrics", "internal/setting",
		"internal/tokens", "internal/http1", "pools"}, // upstream carries what engines are asked to tokenize
	"prefill":           legs,
	"decode":            append(legs, "prefill"), // whose workers may compute prompts themselves
	"handoff/connector": {below, "fault", "pools", "prefill"},
	"handoff": {below, "decode", "fault", "handoff/connector", "models", "pools", "prefill", "queue", "router",
		"kv/index", "kv/overlap", "router/placement"},
}

// roof is what clients and operators see, and the composition of the product.
var roof = storey{
	"cmd/gateway/edge":    {below, "cmd/gateway/dialect"},
	"cmd/gateway/dialect": {"internal/openai"}, // it converts bodies and streams, and decides nothing else
	"cmd/gateway/service": {below, "internal/guard", "internal/setting", "pools", "kv/overlap", "fault", "internal/metrics"},
	// the client of the index service, and their wire types
	"cmd/gateway/observe":  {below},                        // the lines that it writes itself
	"cmd/gateway/problems": {below, "cmd/gateway/observe"}, // it decides; stack gathers the facts
	"cmd/gateway/console":  {below, "cmd/gateway/edge", "cmd/gateway/observe", "cmd/gateway/problems"},
	// the edge's Page, and what the observer counts
	"cmd/gateway/stack": {below, "cmd/gateway/console", "cmd/gateway/edge", "cmd/gateway/observe", "cmd/gateway/problems", "cmd/gateway/service"},
}

// lab is what is not the product: simulated engines, load, benchmarks. Only the command's files in labUsers import it.
var lab = storey{
	"lab/engine": {"lab/testkit", "internal/tokens", "internal/setting", "fault", "internal/metrics",
		"internal/openai", "internal/guard", "kv/wire", "kv/zmq"},
	"lab/replay": {"internal/auth", "lab/testkit", "internal/openai", "internal/terminal", "internal/setting",
		"internal/tokens"},
	"lab/simulate": {"fault", "pools", "queue", "router", "router/placement", "router/planner", "router/load", "kv/index",
		"router/replica",
		"lab/engine", "lab/testkit", "lab/replay", "internal/setting", "internal/speed", "prefill", "internal/terminal",
		"internal/tokens"},
	"lab/devfleet":       {below, "lab/engine"},                 // the product's own composition, with simulated workers
	"lab/fleet":          {below, "lab/devfleet", "lab/engine"}, // the harness of tests of the whole gateway
	"bench":              {below, "lab/replay", "lab/testkit"},
	"deploy/helm":        {}, // a module of its own: tests of the chart and of deploy/kubernetes
	"deploy/compose/run": {"lab/engine", "lab/testkit", "internal/openai", "internal/terminal", "internal/tokens"},
	// computes the expected answers
	"deploy/release": {"lab/testkit"},
}

// command is the binary, which joins product and lab, and the tests of the whole.
var command = storey{
	"cmd/gateway":                {below, "lab/fleet", "lab/engine", "lab/replay", "lab/simulate", "lab/devfleet", "lab/testkit"},
	"cmd/gateway/e2e":            {below, "lab/fleet", "lab/engine", "lab/replay", "lab/simulate", "lab/devfleet", "lab/testkit"},
	"cmd/gateway/e2e/operations": {below, "lab/fleet", "lab/devfleet", "lab/replay", "lab/simulate"}, // whose reports it looks at
	"cmd/gateway/e2e/clients":    {below, "lab/fleet"},
}

// storeys is the import table, from the ground up. A new package is added to its storey with the fewest arrows that it
// needs, with a reason where that is not obvious, and to the map in ARCHITECTURE.md.
var storeys = []struct {
	name string
	storey
}{{"ground", ground}, {"rooms", rooms}, {"roof", roof}, {"lab", lab}, {"command", command}}

// find returns what a package may import, and its storey's place from the ground up.
func find(name string) (may []string, place int, ok bool) {
	if strings.HasPrefix(name, "cmd/gateway/e2e/") { // by subject, with one row
		name = "cmd/gateway/e2e"
	}
	for i, s := range storeys {
		if may, ok := s.storey[name]; ok {
			return may, i, true
		}
	}
	return nil, 0, false
}

// inLab reports whether the package is in the lab.
func inLab(name string) bool {
	_, ok := lab[name]
	return ok
}

// labUsers are the files of cmd/gateway that import the lab: the subcommands that simulate and measure.
var labUsers = []string{"lab.go"}

// kv is what every package of KV events may import.
var kv = []string{"kv/wire", "kv/index", "internal/tokens"}

// legs is what prefill and decode share. Tests cut streams as engines' detokenizers write them.
var legs = []string{"internal/tokens", "internal/setting", "internal/speed", "pools", "router", "router/load", "fault", "internal/openai",
	"internal/http1", "lab/testkit"}

// allowed returns why a file of the package from may not import the package to, or nil.
func allowed(from, to string) error {
	may, place, ok := find(from)
	if !ok {
		return fmt.Errorf("the package %q is not in the table: add it to its storey in internal/house/imports_test.go, with what it may import", from)
	}
	_, target, ok := find(to)
	if !ok {
		return fmt.Errorf("it imports %q, which is not in the table: add it to its storey in internal/house/imports_test.go", to)
	}
	if slices.Contains(may, to) {
		return nil
	}
	if slices.Contains(may, below) && target < place && !inLab(to) {
		return nil
	}
	return fmt.Errorf("%s may not import %s: hand what it needs in from cmd/gateway as a func or an interface that %[1]s declares, or argue for the arrow in internal/house/imports_test.go", from, to)
}

// Tests obey the same arrows as the code they test, so that a room can be
// understood without those above it. What needs more stands below cmd/gateway/e2e.
func TestImportsFollowTheTable(t *testing.T) {
	for _, s := range load(t).sources {
		if s.generator() {
			continue
		}
		if _, _, ok := find(s.room); !ok {
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

// Each row of the table is a package that exists. Every arrow leads down or stays in its storey, and none goes in a
// circle, so that the tree has no cycle.
func TestTheTableLeadsDown(t *testing.T) {
	named, seen, exist := imports{}, map[string]bool{}, map[string]bool{}
	for _, s := range load(t).sources {
		exist[s.room] = true
	}
	exist["cmd/gateway/e2e"] = true // its folders
	for place, s := range storeys {
		for name, may := range s.storey {
			assert.False(t, seen[name], "%s stands in two storeys", name)
			assert.True(t, exist[name], "%s stands in the table and has no Go file: strike its row", name)
			seen[name], named[name] = true, map[string]bool{}
			for _, to := range may {
				_, target, ok := find(to)
				switch {
				case to == below:
				case !ok:
					t.Errorf("%s may import %s, which is no package of the table", name, to)
				case target > place:
					t.Errorf("%s (%s) may import %s (%s)", name, s.name, to, storeys[target].name)
				default:
					named[name][to] = true
				}
			}
		}
	}
	assert.Empty(t, named.cycles(), "the table's arrows go in a circle")
}

// The product runs without the lab, and without what is there for tests: of its
// code only the subcommands that simulate import the lab.
func TestTheProductNeedsNoLab(t *testing.T) {
	used := map[string]bool{}
	for _, s := range load(t).sources {
		if !s.code() || inLab(s.room) {
			continue
		}
		for _, p := range s.imports() {
			to, ok := ours(p)
			if ok && to == "lab/testkit" && s.room != to {
				t.Errorf("%s imports %s, which is there for tests", s.path, to)
			}
			if !ok || !inLab(to) {
				continue
			}
			pattern := slices.IndexFunc(labUsers, func(pattern string) bool { return match("cmd/gateway/"+pattern, s.path) })
			if pattern < 0 {
				t.Errorf("%s imports %s: product code does without the lab", s.path, to)
				continue
			}
			used[labUsers[pattern]] = true
		}
	}
	for _, pattern := range labUsers {
		assert.True(t, used[pattern], "no file %s of cmd/gateway imports the lab: strike it from labUsers", pattern)
	}
}

func TestAllowedRefuses(t *testing.T) {
	tests := []struct{ from, to, want string }{
		{"router", "pools", ""},
		{"router", "queue", "router may not import queue"},
		{"pools", "router", "pools may not import router"},
		{"cmd/gateway/stack", "lab/engine", "cmd/gateway/stack may not import lab/engine"},
		{"lab/devfleet", "cmd/gateway/stack", ""},
		{"cmd/gateway/edge", "cmd/gateway/observe", "cmd/gateway/edge may not import cmd/gateway/observe"},
		{"cmd/gateway", "cmd/gateway/observe", ""},
		{"internal/kitchen", "pools", `the package "internal/kitchen" is not in the table: add it to its storey`},
		{"cmd/gateway", "internal/kitchen", `it imports "internal/kitchen", which is not in the table`},
	}
	for _, tt := range tests {
		if err := allowed(tt.from, tt.to); tt.want != "" {
			assert.ErrorContains(t, err, tt.want)
		} else {
			assert.NoError(t, err)
		}
	}
}

// libraries are the rooms that other programs may use without taking the
// gateway's dependencies over, and transports are those dependencies.
var (
	libraries  = []string{"router", "router/load", "kv/index", "router/load", "kv/overlap", "pools", "queue", "fault"}
	transports = []string{"go.etcd.io/", "github.com/nats-io/", "github.com/gofiber/", "github.com/valyala/fasthttp", "google.golang.org/grpc"}
)

func TestLibrariesPullInNoTransport(t *testing.T) {
	g := imports{} // other modules' packages too
	for _, s := range load(t).sources {
		if !s.code() {
			continue
		}
		if g[s.room] == nil {
			g[s.room] = map[string]bool{}
		}
		for _, p := range s.imports() {
			if to, own := ours(p); own {
				p = to
			}
			g[s.room][p] = true
		}
	}
	for _, library := range libraries {
		assert.NotNil(t, g[library], "there is no room %s", library)
		for to := range g.reached(library) {
			assert.False(t, slices.ContainsFunc(transports, func(barred string) bool { return strings.HasPrefix(to, barred) }),
				"%s pulls a transport in: %s", library, to)
		}
	}
}

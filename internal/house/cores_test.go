package house

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// cores are the files that decide or transform: plain values without goroutine, clock, I/O or shared randomness, so
// that the same inputs give the same result and a simulation can drive them. They hold no lock and write no log either.
// Patterns are path.Match's. The shells of a row are no cores; its locked files are, but for the locks of values that
// several goroutines use.
var cores = []struct {
	files  string
	shells []string
	locked []string
}{
	{files: "decode/gaps.go"},
	{files: "fault/class*.go"},
	{files: "fault/run.go"},
	{files: "handoff/connector/*.go"},
	{files: "handoff/decide.go"},
	{files: "handoff/cleanupstack.go"},
	{files: "router/planner/*.go"},
	{files: "cmd/gateway/dialect/*.go"},
	{files: "lab/engine/*.go", shells: []string{"call.go", "death.go", "inputs.go", "mailbox.go", "publisher.go", "scheduler.go", "server.go",
		"sidechannel.go", "socket.go", "store.go"}},
	{files: "internal/openai/*.go", shells: []string{"shared.go"}}, // keeps memory for the next
	{files: "internal/tokens/*.go", shells: []string{
		"cache.go",  // seeds its hash at random, against crafted collisions
		"shared.go", // makes tables at their first use, and keeps memory for the next
	}},
	{files: "pools/*.go", shells: []string{"roster.go"}},
	{files: "prefill/rate.go"},
	{files: "queue/*.go", shells: []string{"queue.go"}},
	{files: "router/*.go", shells: []string{"log.go", "set.go"}, locked: []string{"router.go"}},
	{files: "router/placement/*.go"},
	{files: "kv/overlap/*.go", locked: []string{"sources.go"}},
	{
		files:  "kv/index/*.go",
		shells: []string{"huge_linux.go"}, // advises the kernel on pages: changes no result
		locked: []string{"index.go", "owner.go", "budget.go", "table.go"},
	},
	{files: "router/load/*.go"},
	{files: "router/replica/*.go", shells: []string{"board.go", "dial.go", "effects.go", "jetstream.go", "member.go", "publish.go", "query.go"}},
}

// bar is what a core may not use of a package: only the names listed, or all
// but those listed. With neither, the package as a whole.
type bar struct{ only, but []string }

// ambient is what reaches out of a core, by import path.
var ambient = map[string]bar{
	"time":         {only: []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}},
	"context":      {only: []string{"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause", "AfterFunc"}},
	"math/rand/v2": {but: []string{"Rand", "Source", "PCG", "ChaCha8", "Zipf", "New", "NewPCG", "NewChaCha8", "NewZipf"}},
	"net":          {but: []string{"Error", "OpError", "DNSError", "ErrClosed", "IP", "ParseIP", "SplitHostPort", "JoinHostPort"}},
	"os":           {but: []string{"ErrDeadlineExceeded", "ErrNotExist"}},
	"syscall":      {but: []string{"Errno", "ECONNREFUSED", "ECONNRESET", "EPIPE", "ETIMEDOUT"}},
	"net/http":     {only: []string{"Get", "Head", "Post", "PostForm", "DefaultClient", "Serve", "ListenAndServe", "DefaultTransport"}},
	"math/rand":    {},
	"crypto/rand":  {},
	"os/exec":      {},
	"os/signal":    {},
	"log":          {},
	"log/slog":     {},
	"sync":         {},
}

// bars reports whether the name may not be used.
func (b bar) bars(name string) bool {
	if b.only != nil {
		return slices.Contains(b.only, name)
	}
	return !slices.Contains(b.but, name)
}

func TestCoresAreBarredFromTheWorld(t *testing.T) {
	sources := load(t).sources
	for _, core := range cores {
		matched := 0
		for _, s := range sources {
			if !s.code() || !match(core.files, s.path) || slices.Contains(core.shells, path.Base(s.path)) {
				continue
			}
			matched++
			for _, reach := range reaches(s) {
				if strings.HasSuffix(reach, " imports sync") && slices.Contains(core.locked, path.Base(s.path)) {
					continue
				}
				t.Errorf("%s in a core: take the time, the random source or the result as an argument, and let the shell wait, lock, log and call", reach)
			}
		}
		assert.NotZero(t, matched,
			"no file matches %s: cores in internal/house/cores_test.go has fallen behind the tree", core.files)
		for _, listed := range slices.Concat(core.shells, core.locked) {
			if name := path.Join(path.Dir(core.files), listed); !slices.ContainsFunc(sources, func(s *source) bool { return s.path == name }) {
				t.Errorf("%s is gone: cores in internal/house/cores_test.go has fallen behind the tree", name)
			}
		}
	}
}

func match(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	if err != nil {
		panic(err)
	}
	return ok
}

// reaches lists where a file reaches out of itself.
func reaches(s *source) []string {
	var found []string
	imported := s.imports()
	for name, p := range imported {
		if b, ok := ambient[p]; ok && (b.only == nil && b.but == nil || name == "." || name == "_") {
			found = append(found, s.path+" imports "+p)
		}
	}
	slices.Sort(found)
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, s.at(n.Pos())+": a goroutine")
		case *ast.SelectorExpr:
			pkg, ok := n.X.(*ast.Ident)
			if !ok {
				break
			}
			p := imported[pkg.Name]
			if b, ok := ambient[p]; ok && (b.only != nil || b.but != nil) && b.bars(n.Sel.Name) {
				found = append(found, s.at(n.Pos())+": "+p+"."+n.Sel.Name)
			}
		}
		return true
	})
	return found
}

func TestReachesFindsWhatIsBarred(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"clock", `import "time"; var _ = time.Now()`, "core.go:1: time.Now"},
		{"clock by another name", `import clock "time"; var _ = clock.Since`, "core.go:1: time.Since"},
		{"clock by no name", `import . "time"; var _ = Now()`, "core.go imports time"},
		{"deadline", `import "context"; var _ = context.WithTimeout`, "core.go:1: context.WithTimeout"},
		{"shared randomness", `import "math/rand/v2"; var _ = rand.IntN(2)`, "core.go:1: math/rand/v2.IntN"},
		{"environment", `import "os"; var _ = os.Getenv("x")`, "core.go:1: os.Getenv"},
		{"lock", `import "sync"; var mu sync.Mutex`, "core.go imports sync"},
		{"value that readers share", `import "sync/atomic"; var n atomic.Int64`, ""},
		{"goroutine", `func f() { go f() }`, "core.go:1: a goroutine"},
		{"time as a value", `import "time"; var t time.Time; var d = t.Sub(t) + time.Second`, ""},
		{"a field called time", `var time struct{ Now int }; var _ = time.Now`, ""},
	}
	for _, tt := range tests {
		s := mustParse(t, "core.go", "package p; "+tt.text)
		assert.Equal(t, tt.want, strings.Join(reaches(s), "\n"), "%s", tt.name)
	}
}

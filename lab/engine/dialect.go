package engine

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// dialect is what differs between the engines that are simulated: paths, fields and refusals, the form of hand-offs on
// both legs, of answers and errors, metrics. Everything else is Server's and Core's. A dialect holds its Server.
type dialect interface {
	// routes adds the engine's paths to its listener.
	routes(mux *http.ServeMux)
	// sideRoutes adds the engine's paths to its second listener, on which the
	// simulation's own transfers run too: those of a bootstrap server.
	sideRoutes(mux *http.ServeMux)

	// callID is the answer's id.
	callID(c *call, r *http.Request, f *fields) string
	// handOff reads which hand-off a request takes part in, before anything else is checked: it sets Pin, Hold and
	// Remote of c.request, and, if the producer must learn of a refusal, c.remote.
	handOff(c *call, r *http.Request, f *fields) *apiError
	// settings reads everything but the prompt, into c and c.request, and returns how many
	// answers each prompt is to have. What is wrong stays in f.
	settings(c *call, f *fields) int
	// prompts reads the prompts' ids. Errors stay in f.
	prompts(c *call, f *fields) [][]uint32
	// refused is called once for a request that is not served after handOff has read it.
	refused(c *call)

	// handOffFailed is the error of a sequence that ended with LoadFailed.
	handOffFailed(err error) *apiError
	// failure is an error as the engine writes it.
	failure(e *apiError) any
	// whole is the complete answer.
	whole(c *call) any
	// appendChunk appends the events of choice i's newest text and ids: its end too, once the choice has a finish.
	appendChunk(out []byte, c *call, i int, text string, ids []uint32) []byte
	// appendEnd appends what comes after all choices have ended well, without the end mark.
	appendEnd(out []byte, c *call) []byte

	// measure makes the engine's metrics.
	measure(began time.Time) *counters
}

// dialects are the engines that can be simulated, with the release that each is
// unless Config.EngineVersion overrides it, and its connectors by name.
var dialects = map[string]struct {
	version    string
	connectors []string
	of         func(*Server) dialect
}{
	"sglang": {sglangRelease, []string{"sglang"}, func(s *Server) dialect { return &sglang{s: s} }},
	"sim":    {vllmRelease, slices.Sorted(maps.Keys(vllmConnectors)), func(s *Server) dialect { return newVLLM(s, false) }},
	"vllm":   {vllmRelease, slices.Sorted(maps.Keys(vllmConnectors)), func(s *Server) dialect { return newVLLM(s, true) }},
	"trtllm": {tensorRTRelease, []string{"trtllm", "trtllm-gen-first"}, func(s *Server) dialect { return &tensorRT{s: s} }},
}

// engines are the names of the dialects, for messages.
func engines() string { return strings.Join(slices.Sorted(maps.Keys(dialects)), ", ") }

// Before reports whether the engine's release is earlier than another, such as
// "0.24.0". Only the leading numbers count: 0.24.0rc1 is not before 0.24.0.
func (c Config) Before(release string) bool {
	c = c.withDefaults()
	return slices.Compare(numbers(c.EngineVersion), numbers(release)) < 0
}

// numbers are the leading dotted numbers of a release.
func numbers(release string) []int {
	var ns []int
	for part := range strings.SplitSeq(strings.TrimPrefix(release, "v"), ".") {
		digits := len(part) - len(strings.TrimLeft(part, "0123456789"))
		n, err := strconv.Atoi(part[:digits])
		if err != nil {
			break
		}
		if ns = append(ns, n); digits < len(part) {
			break
		}
	}
	return ns
}

// version is the release of an engine by default, empty for an unknown one.
func version(engine string) string { return dialects[engine].version }

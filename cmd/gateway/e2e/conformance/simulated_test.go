package conformance

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/fleet"
)

// kinds are the engines that have a recording.
var kinds = []string{"vllm", "sglang"}

func TestMain(m *testing.M) { os.Exit(fleet.Main(m)) }

// TestSimulatedEngines sends each row of the table to simulated engines: through the gateway it gets what it gets alone,
// and what it gets alone has the shape of what the real engine answered when it was recorded.
func TestSimulatedEngines(t *testing.T) {
	for _, kind := range kinds {
		fleet.VirtualRun(t, kind, func(t *testing.T) {
			whole, pair := fleet.Of(kind), fleet.Of(kind)
			whole.Both, pair.Prefill, pair.Decode = 1, 1, 1
			f := fleet.New(t, whole)
			client, alone := fleet.Client(t), f.Workers["both-1"].Record().Address
			rows := table(kind, []string{"tandem-sim", "970", "4095", "972", "971"})
			got, _ := conform(t, client, kind, alone, rows, []target{{"whole", f.URL}, {"pair", fleet.New(t, pair).URL}})
			want := readRecording(t, kind)
			require.Equal(t, len(want.Rows), len(got.Rows), "rows; record again: make conformance RECORD=-record")
			for _, r := range rows {
				for i, n := range want.Rows[r.name] {
					name := r.name + []string{"", ", streamed"}[i]
					for _, d := range shapeDifferences(want.Shapes[n], got.Shapes[got.Rows[r.name][i]]) {
						if explain(kind, "simulated", name, d) < 0 {
							t.Errorf("simulated: %s%s", name, d)
						}
					}
				}
			}
		})
	}
}

// shapeDifferences lists where two shapes differ. All else follows from another status.
func shapeDifferences(want, got any) []string {
	w, g := want.(map[string]any), got.(map[string]any)
	if w["status"] != g["status"] {
		return []string{fmt.Sprintf(".status: want %v %s, got %v %s", w["status"], brief(w["body"]), g["status"], brief(g["body"]))}
	}
	return differences("", w, g, nil)
}

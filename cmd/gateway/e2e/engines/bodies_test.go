package engines

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// TestBodiesOfRealClientsAreServed sends small bodies of the forms that clients send to strict engines of each kind,
// prefill and decode apart: what the engines would refuse though it means nothing does not reach them.
func TestBodiesOfRealClientsAreServed(t *testing.T) {
	files, err := filepath.Glob("../../../../internal/openai/testdata/bodies/*.json")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d bodies, %v", len(files), err)
	}
	limits := regexp.MustCompile(`("(?:max|min)(?:_completion)?_tokens" ?: ?)\d+`)
	model := regexp.MustCompile(`"model" ?: ?"m"`)
	for engine, start := range map[string]func(t *testing.T) *fleet.Fleet{
		"vllm": func(t *testing.T) *fleet.Fleet {
			return fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Worker: func(c *devfleet.WorkerConfig) { c.Engine.Engine = "vllm" }})
		},
		"sglang": func(t *testing.T) *fleet.Fleet { return sglangFleet(t, 1, 1, nil, nil) },
		"trtllm": func(t *testing.T) *fleet.Fleet {
			return newTensorRT(t, "trtllm", fleet.Options{Prefill: 1, Decode: 1})
		},
	} {
		t.Run(engine, func(t *testing.T) {
			f := start(t)
			for _, file := range files {
				raw, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				body := model.ReplaceAllString(limits.ReplaceAllString(string(raw), "${1}6"), `"model":"tandem-sim"`)
				path := "/v1/chat/completions"
				if !strings.Contains(body, `"messages"`) {
					path = fleet.CompletionPath
				}
				f.Good(path, body)
			}
			f.Idle()
		})
	}
}

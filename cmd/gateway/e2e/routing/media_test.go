package routing

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// An image of 3 MiB is served by workers whose cache has room for a tenth of
// its base64 in tokens, and is booked as an image.
func TestImagesAreBookedByTheirTokens(t *testing.T) {
	f := fleet.New(t, fleet.Options{Worker: func(c *devfleet.WorkerConfig) {
		c.Engine.ContextLength, c.Engine.TotalKVBlocks = 65_536, 4_200
	}})
	image := strings.Repeat("iVBORw0K", 3<<17)
	for _, ask := range []string{"What is this?", "And what is that?"} {
		a := f.Post("/v1/chat/completions", fmt.Sprintf(`{"model":"tandem-sim","max_tokens":4,"messages":[{"role":"user","content":[`+
			`{"type":"text","text":%q},{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}]}]}`, ask, image))
		if a.Status != http.StatusOK {
			t.Fatalf("%d %.200s", a.Status, a.Body)
		}
	}
	f.Idle()
	if logs := f.Logs.String(); strings.Count(logs, " isl=10") != 2 { // 1,024 and the question
		t.Errorf("an image was not booked by its tokens")
	}
}

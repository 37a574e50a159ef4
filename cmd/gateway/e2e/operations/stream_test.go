package operations

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A page that opens gets every figure, then what has changed alone; fifty may be open, and each that closes makes room.
func TestViewers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, false)
	var sizes []int
	f.watch(20*time.Second, func(live map[string]string, _ string) bool {
		sizes = append(sizes, len(live))
		return len(sizes) == 3
	})
	assert.True(t, len(sizes) == 3 && sizes[0] >= 70 && sizes[1] <= sizes[0]/2 && sizes[2] <= sizes[0]/2,
		"the events have %v figures", sizes)
	open := func() *http.Response {
		t.Helper()
		res, err := http.Get(f.URL + "/console/stream")
		require.NoError(t, err)
		return res
	}
	var all []*http.Response
	f.Eventually("fifty pages are open", func() bool { // the one above may not have been seen to leave
		for len(all) < 50 {
			res := open()
			if res.StatusCode != http.StatusOK {
				res.Body.Close()
				return false
			}
			all = append(all, res)
		}
		return true
	})
	refused := open()
	defer refused.Body.Close()
	var e struct{ Error struct{ Code string } }
	if err := json.NewDecoder(refused.Body).Decode(&e); err != nil || refused.StatusCode != http.StatusServiceUnavailable ||
		e.Error.Code != "too_many_viewers" || refused.Header.Get("Retry-After") == "" {
		t.Errorf("the next one gets %d %+v, %v", refused.StatusCode, e, err)
	}
	if status, _ := f.get("/"); status != http.StatusOK {
		t.Errorf("its page is answered %d", status)
	}
	for _, res := range all {
		res.Body.Close()
	}
	f.Eventually("there is room again", func() bool {
		res := open()
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

package console

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkViewers measures what ten open pages cost, which follow the stream over sockets and fetch their page again as the script
// does, while 500 requests a second end: the CPU of this process, which the viewers' own ends are part of, with less without them.
func BenchmarkViewers(b *testing.B) {
	var share float64
	for range b.N {
		share = shareOfACore(b, 10) - shareOfACore(b, 0)
	}
	b.ReportMetric(100*share, "%-of-a-core")
}

// shareOfACore is how much of a core the process takes while so many pages are open, over three seconds of 500 requests.
func shareOfACore(t testing.TB, viewers int) float64 {
	c, _ := consoleOf(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { _ = c.Run(ctx) }) // ends with ctx
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/console/stream" {
			_, _ = w.Write(c.Page(r.URL.Path, r.URL.RawQuery).Body) // a viewer that left is none
			return
		}
		next, leave, _ := c.Watch()
		defer leave()
		for {
			event, err := next(r.Context())
			if err == nil {
				_, err = w.Write(event)
			}
			if err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush() // the next write fails where this does
		}
	}))
	defer server.Close()
	defer cancel() // before the server waits for its viewers
	seen := make(chan struct{}, viewers)
	for i := range viewers {
		group.Go(func() { view(ctx, server.URL, tabs[i%len(tabs)], seen) })
	}

	beat, n := time.NewTicker(10*time.Millisecond), 0
	defer beat.Stop()
	second := func() {
		for range 100 {
			<-beat.C
			for range 5 {
				n++
				serveTwoLegs(c.recorder, newRecord(n))
			}
		}
	}
	for len(seen) < viewers { // each has its first event
		second()
	}
	before := spentCPU(t)
	began := time.Now()
	for range 3 {
		second()
	}
	return (spentCPU(t) - before).Seconds() / time.Since(began).Seconds()
}

// view follows the stream, and fetches a page when it is made of other things, no oftener than the script does.
func view(ctx context.Context, url string, at *tab, seen chan<- struct{}) {
	get := func(path string) (io.ReadCloser, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
		if err != nil {
			return nil, err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		return res.Body, nil
	}
	stream, err := get("/console/stream")
	if err != nil {
		return
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	var fetched time.Time
	revision := ""
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		select {
		case seen <- struct{}{}:
		default:
		}
		var m message
		if json.Unmarshal([]byte(data), &m) != nil || m.Revision[at.Name] == revision || time.Since(fetched) < map[string]time.Duration{"requests": 2 * time.Second, "cache": 3 * time.Second}[at.Name] {
			continue
		}
		fetched, revision = time.Now(), m.Revision[at.Name]
		if page, err := get(at.Path); err == nil {
			_, _ = io.Copy(io.Discard, page)
			page.Close()
		}
	}
}

// spentCPU is the process's CPU time.
func spentCPU(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/router"
)

// unserved is a request that ends without an answer, after so many attempts.
func unserved(c *Recorder, i, attempts int, outcome string) {
	r := newRecord(i)
	c.Arrived(r)
	r.Attempts, r.Outcome = attempts, outcome
	c.Ended(r, errors.New(outcome))
}

// selected is the ids that a query finds, and how many fit.
func selected(t *testing.T, c *Recorder, text string) (ids []string, fit int) {
	t.Helper()
	q, err := url.ParseQuery(text)
	require.NoError(t, err)
	asked, _, err := parseQuery(q, time.Now())
	require.NoError(t, err, text)
	found, _, fit := c.find(&asked)
	for i := range found {
		ids = append(ids, found[i].ID)
	}
	return ids, fit
}

// Floods of answers, of refusals and of clients who leave displace neither the failures nor the slowest, and all of it
// keeps within its bytes.
func TestFloodsLeaveFailuresAndTheSlowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewRecorder(deaf{})
		for i := range 20 {
			unserved(c, i, 2, fault.Reset.String())
		}
		slow := func(i int, queued, decodes time.Duration) { serve(c, newRecord(i), queued, 0, 0, decodes) }
		slow(100, 2*time.Second, 0)
		slow(101, 0, 5*time.Second)
		for i := range 30_000 {
			slow(1000+i, time.Duration(i%1000)*time.Microsecond, 0)
		}
		for i := range 30_000 {
			unserved(c, 100_000+i, 0, "server_is_overloaded")
			unserved(c, 200_000+i, 1, fault.ClientGone.String())
		}
		failed, n := selected(t, c, "outcome=failed&limit=1000")
		assert.True(t, n == 20 && len(failed) == 20 && failed[0] == "client-19", "%d failures are left: %v", n, failed)
		for query, want := range map[string]string{"sort=ttft": "client-100", "sort=itl": "client-101", "sort=total": "client-101"} {
			found, _ := selected(t, c, query)
			assert.Equal(t, want, found[0], query)
		}
		sum, stored := 0, 0
		for i := range c.shelves {
			assert.LessOrEqual(t, c.shelves[i].bytes, shelfBytes[i])
			sum, stored = sum+c.shelves[i].bytes, stored+c.shelves[i].n
		}
		assert.GreaterOrEqual(t, stored, 10_000, "requests are stored at %d bytes each", traceBytes)
		assert.True(t, c.made <= stored+3*keptSlowest+2*64 && len(c.live) == 0, "%d requests took memory, %d are stored", c.made, stored)
		for i := range 3000 { // each with the costs of 128 candidates
			r := newRecord(i)
			r.Prefill.Why.Terms, r.Decode.Why.Terms = make([]router.Term, 64), make([]router.Term, 64)
			serve(c, r, 0, 0, 0, 0)
		}
		s := &c.shelves[succeeded]
		most := shelfBytes[succeeded] / (128 * termBytes)
		assert.True(t, s.bytes <= shelfBytes[succeeded] && s.n <= most && s.n > most*8/10, "%d are stored in %d bytes", s.n, s.bytes)
		assert.LessOrEqual(t, sum, 16<<20)
	})
}

// Requests are found by each filter, and sorted by each column both ways; a name of a session is not kept, and finds its
// requests.
func TestFindRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, began := NewRecorder(deaf{}), time.Now()
		add := func(i int, change func(*handoff.Record)) {
			r := newRecord(i)
			change(r)
			serve(c, r, time.Duration(i)*time.Millisecond, 0, 0, time.Duration(10-i)*time.Second)
		}
		add(1, func(r *handoff.Record) { r.PolicyClass = "batch" })
		add(2, func(r *handoff.Record) { r.Call.Session = "their-secret" })
		add(3, func(r *handoff.Record) { r.Call.Request.Model, r.ISL = "n", 1000 })
		unserved(c, 4, 1, fault.Timeout.String())
		time.Sleep(time.Millisecond)
		unserved(c, 5, 0, "server_is_overloaded")
		time.Sleep(time.Millisecond)
		unserved(c, 6, 0, fault.ClientGone.String())
		for query, want := range map[string]string{
			"": "6 5 4 3 2 1", "sort=%2Barrived": "1 2 3 4 5 6", "limit=2": "6 5", "class=batch": "1", "session=their-secret": "2", "session=x": "",
			"model=n": "3", "worker=d1": "3 2 1", "worker=p1&limit=1": "3", "worker=d2": "", "outcome=failed": "4", "outcome=refused": "5",
			"outcome=client_gone": "6", "outcome=ok": "3 2 1", "outcome=server_is_overloaded": "5", "sort=total&outcome=ok": "1 2 3",
			"sort=%2Btotal&outcome=ok": "3 2 1", "sort=+total&outcome=ok": "3 2 1",
			"sort=ttft&outcome=ok": "3 2 1", "sort=itl&outcome=ok": "1 2 3", "sort=prompt&limit=1": "3",
			"id=client-2": "2", "id=own-3": "3", "since=10s": "6 5 4 3", "until=" + url.QueryEscape(began.Format(time.RFC3339)): "1",
		} {
			ids, _ := selected(t, c, query)
			for i := range ids {
				ids[i] = strings.TrimPrefix(ids[i], "client-")
			}
			assert.Equal(t, want, strings.Join(ids, " "), query)
		}
		for _, column := range requestColumns {
			down, n := selected(t, c, "sort="+column.Name)
			up, _ := selected(t, c, "sort=%2B"+column.Name)
			slices.Sort(down)
			slices.Sort(up)
			assert.True(t, n == 6 && slices.Equal(down, up), "sorting by %s loses some: %v", column.Name, down)
		}
		for _, wrong := range []string{"sort=cost", "limit=1001", "since=x"} {
			q, _ := url.ParseQuery(wrong)
			_, param, err := parseQuery(q, time.Now())
			assert.True(t, err != nil && strings.HasPrefix(wrong, param+"="), "%s: %q", wrong, param)
		}
	})
}

// The requests of a group are in the query's order and within its limit. Without any the list is empty, as openapi.json requires.
func TestRequestsOfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := consoleOf(t, 1)
		report, e := c.Requests(url.Values{})
		require.Nil(t, e)
		body, err := json.Marshal(report)
		require.NoError(t, err)
		assert.Contains(t, string(body), `"requests":[]`)
		for i, took := range []time.Duration{3, 1} {
			serve(c.recorder, newRecord(i), 0, 0, 0, took*time.Second)
		}
		for sort, want := range map[string]string{"total": "gw-a 3s, gw-b 2s", "+total": "gw-a 1s, gw-b 2s", "arrived": "gw-a 1s, gw-a 3s"} {
			report, e := c.Requests(url.Values{"sort": {sort}, "limit": {"2"}})
			require.Nil(t, e)
			report.Gateway = "gw-a"
			report.Add("gw-b", []Request{{summary: summary{Total: 2 * time.Second}, Gateway: "gw-x", Phase: 99}})
			var got []string
			for _, r := range report.Requests {
				got = append(got, fmt.Sprint(r.Gateway, " ", r.Total))
				assert.Equal(t, Over, r.Phase)
			}
			assert.Equal(t, want, strings.Join(got, ", "), sort)
		}
	})
}

// A request that this gateway lacks is requested once from each other gateway. The page shows how many there were.
func TestRequestElsewhere(t *testing.T) {
	c, _ := consoleOf(t, 1)
	asked := 0
	var report RequestsReport
	c.src.Past = func(path string, q url.Values) (any, *openai.Error) {
		asked++
		assert.Equal(t, "/requests?group=true&id=far+%3Cb%3E", path+"?"+q.Encode())
		return &report, nil
	}
	report = RequestsReport{Others: []observe.OtherGateway{{Gateway: "gw-b"}, {Gateway: "gw-c", Error: "timeout"}}}
	page := c.Page("/console/requests", "id=far+%3Cb%3E")
	assert.Equal(t, http.StatusNotFound, page.Status)
	assert.Contains(t, string(page.Body), "No request of that id is kept on 2 gateways. 1 of the group did not answer.")
	report.Requests = []Request{{ID: "far <b>", Name: "own", Gateway: "<i>gw-b", Phase: Over}}
	page = c.Page("/console/requests", "id=far+%3Cb%3E")
	assert.Equal(t, http.StatusOK, page.Status)
	assert.Contains(t, string(page.Body), "kept by &lt;i&gt;gw-b · ")
	assert.Contains(t, string(page.Body), "<code>far &lt;b&gt;</code>")
	assert.Equal(t, 2, asked)
	serve(c.recorder, newRecord(1), 0, 0, 0, 0)
	c.recorder.live, c.recorder.shelves[succeeded].at(0).id = nil, "half%41"
	for path, query := range map[string]string{"/console/requests/half%41": "", "/console/requests": "id=half%2541"} {
		assert.Equal(t, http.StatusOK, c.Page(path, query).Status, "an id with a percent sign: %s", path)
	}
}

// A flood of one kind of events leaves the marks of the others.
func TestMarksOfAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := consoleOf(t, 1)
		log, journal := observe.Journaled(slog.New(slog.DiscardHandler))
		c.src.Journal = journal
		log.Warn("worker down", "worker", "w1")
		for i := range 40 {
			for _, code := range []string{"a", "b", "c", "d"} {
				log.Warn("requests refused", "code", code)
			}
			log.Warn("leg failed", "worker", fmt.Sprint("d", i%3))
			time.Sleep(20 * time.Second)
		}
		var all []mark
		require.NoError(t, json.Unmarshal(c.marks().Body, &all))
		require.NotEmpty(t, all)
		assert.Contains(t, all[0].Text, "worker down w1")
		assert.Len(t, all, 1+2*marksOfKind)
		assert.True(t, slices.IsSortedFunc(all, func(a, b mark) int { return cmp.Compare(a.At, b.At) }))
	})
}

// BenchmarkFind is a list of 50 of as many requests as are kept, whose filter all of them pass.
func BenchmarkFind(b *testing.B) {
	c := NewRecorder(deaf{})
	for i := range 20_000 {
		serve(c, newRecord(i), 0, 0, 0, 0)
	}
	for _, sort := range []string{"arrived", "+arrived", "total"} {
		b.Run(fmt.Sprint(c.shelves[succeeded].n, " ", sort), func(b *testing.B) {
			asked, _, err := parseQuery(url.Values{"sort": {sort}, "model": {"m"}}, time.Now())
			require.NoError(b, err)
			for b.Loop() {
				c.find(&asked)
			}
		})
	}
}

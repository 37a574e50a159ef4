package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tandem-pd/tandem/pools"
)

// at is a worker whose record names other hosts.
func at(id string, change func(*pools.Worker)) pools.Worker {
	w := testWorker(id)
	w.Address = "http://10.1.0.7:8000"
	change(&w)
	return w
}

func TestRecordsNameAllowedHostsOnly(t *testing.T) {
	s := started(t)
	c := s.direct()
	zmq := func(endpoint, replay string) func(*pools.Worker) {
		return func(w *pools.Worker) { w.KVEvents, w.KVEndpoint, w.KVReplay = "zmq", endpoint, replay }
	}
	refused := map[string]string{ // by id: the field to blame
		"address": "address", "no-port": "address", "transfer": "transfer_endpoint", "context": "transfer_ids",
		"events": "kv_events_endpoint", "replay": "kv_events_replay_endpoint",
	}
	putAll := func() {
		t.Helper()
		s.record(c, at("address", func(w *pools.Worker) { w.Address = "http://10.2.0.7:8000" }))
		s.record(c, at("no-port", func(w *pools.Worker) { w.Address = "http://evil.example" }))
		s.record(c, at("transfer", func(w *pools.Worker) { w.Transfer = "evil.example:5600" }))
		s.record(c, at("context", func(w *pools.Worker) { w.TransferIDs = []string{"", "tcp://evil.example:5600"} }))
		s.record(c, at("events", zmq("tcp://evil.example:5557", "")))
		s.record(c, at("replay", zmq("tcp://10.1.0.7:5557", "tcp://evil.example:5558")))
		// Another record of the same id does not take the good one's place.
		s.record(c, at("good", func(w *pools.Worker) { w.Role, w.Address = pools.Decode, "http://evil.example:80" }))
	}
	putAll()
	s.record(c, at("good", func(w *pools.Worker) {
		w.Transfer, w.TransferIDs = "gpu-1.fleet.example:5600", []string{"an id", "tcp://*:1", "tcp://127.0.0.1:1"}
	}))
	allow, err := ParseHosts([]string{"10.1.0.0/16", "*.fleet.example"})
	require.NoError(t, err)
	known := s.watchBy(WatcherConfig{Grace: 5 * time.Second, Allow: allow}, time.Second)
	check := func(when string) {
		t.Helper()
		within(t, when+": the refusals", func() bool { return len(known.Refused()) == len(refused) && known.knows("good") })
		for _, r := range known.Refused() {
			if want := refused[r.Worker.ID]; want == "" || !strings.Contains(r.Err.Error(), want) ||
				!strings.Contains(r.Err.Error(), "--worker-allow") {
				t.Errorf("%s: %q refused for %v", when, r.Worker.ID, r.Err)
			}
		}
		m, _ := known.Lookup("good")
		assert.True(t, m.Worker.Role == pools.Prefill, "%s: the good worker is %+v", when, m.Worker)
	}
	check("in the list")
	for id := range refused {
		_, err := c.Delete(t.Context(), DefaultPrefix+"org%2Fmodel/prefill/"+id)
		require.NoError(t, err)
	}
	within(t, "the refusals forgotten", func() bool { return len(known.Refused()) == 0 })
	putAll()
	check("as changes")
	// A worker that moves to a host that is not allowed goes.
	s.record(c, at("good", func(w *pools.Worker) { w.Address = "http://10.2.0.1:1" }))
	known.goes("good")
}

func TestRecordsOpenNoListener(t *testing.T) {
	s := started(t)
	c := s.direct()
	for id, endpoint := range map[string]string{"star": "tcp://*:5557", "v4": "tcp://0.0.0.0:5557", "v6": "tcp://[::]:5557"} {
		s.record(c, at(id, func(w *pools.Worker) {
			w.KVEvents, w.KVEndpoint, w.KVReplay, w.KVTopic, w.DataParallelRanks = "zmq", endpoint, "tcp://10.1.0.7:9000", "kv", 300
		}))
	}
	s.record(c, at("named", func(w *pools.Worker) { w.KVEvents, w.KVEndpoint = "zmq", "tcp://10.1.0.7:5557" }))
	known := s.watch()
	within(t, "all four", func() bool { return len(known.Snapshot("org/model", pools.Prefill).Members) == 4 })
	for _, m := range known.Snapshot("org/model", pools.Prefill).Members {
		if w := m.Worker; w.ID == "named" {
			assert.True(t, w.KVEvents == "zmq" && w.KVEndpoint != "", "an engine that is to be connected to came as %+v", w)
		} else if w.KVEvents != "none" || w.KVEndpoint+w.KVReplay+w.KVTopic != "" {
			t.Errorf("%s would have the gateway listen at %s", w.ID, w.KVEndpoint)
		}
	}
}

func TestEtcdPasswordIsUsed(t *testing.T) {
	s := started(t)
	root := s.direct()
	_, err := root.UserAdd(t.Context(), "root", "s:cret/@")
	require.NoError(t, err)
	_, err = root.UserGrantRole(t.Context(), "root", "root")
	require.NoError(t, err)
	_, err = root.AuthEnable(t.Context())
	require.NoError(t, err)
	address := strings.TrimPrefix(s.etcd.URL(), "http://")
	for _, endpoints := range [][]string{
		{"http://root:s%3Acret%2F%40@" + address},
		{"root:s%3Acret%2F%40@" + address},
		{address, "http://root:s%3Acret%2F%40@" + address},
	} {
		c, err := Dial(endpoints, Access{})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // etcd hashes a password slowly on purpose, and slower under -race
		_, err = c.Get(ctx, "/x")
		require.NoError(t, err)
		created := <-c.Watch(ctx, "/x", clientv3.WithCreatedNotify())
		require.NoError(t, created.Err())
		lease, err := c.Grant(ctx, 10)
		require.NoError(t, err)
		_, err = c.KeepAliveOnce(ctx, lease.ID)
		require.NoError(t, err)
		cancel()
		c.Close()
	}
	// Neither does it have to be there yet.
	s.stop()
	s.client("http://root:s%3Acret%2F%40@"+address, Access{})
	for _, bad := range [][]string{
		{"http://root@" + address}, // no password
		{"http://root:a@" + address, "http://root:b@" + address},
	} {
		_, err := Dial(bad, Access{})
		require.Error(t, err, "%q", bad)
		require.NotContains(t, err.Error(), ":a@")
	}
}

// Whoever fills etcd does not fill the gateway: the workers that were there first stay.
func TestRecordsAreBounded(t *testing.T) {
	s := started(t)
	c := s.direct()
	s.record(c, testWorker("first"))
	flood := func(from, to int) {
		t.Helper()
		for from < to {
			var ops []clientv3.Op
			for ; from < to && len(ops) < 100; from++ {
				w := testWorker(fmt.Sprint("w", from))
				record, err := json.Marshal(&w)
				require.NoError(t, err)
				ops = append(ops, clientv3.OpPut(Key(DefaultPrefix, &w), string(record)))
			}
			_, err := c.Txn(t.Context()).Then(ops...).Commit()
			require.NoError(t, err)
		}
	}
	flood(0, maxEndpoints+50)
	known := s.watch()
	members := func() int { return len(known.Snapshot("org/model", pools.Prefill).Members) }
	within(t, "as many as are looked at", func() bool { return members() == maxEndpoints })
	s.record(c, testWorker("late"))
	changed := testWorker("first")
	changed.BlockSize, changed.Taints = 16, []string{"changed"}
	s.record(c, changed)
	within(t, "the change of one that is known", func() bool {
		m, found := known.Lookup("first")
		return found && len(m.Worker.Taints) == 1
	})
	assert.True(t, members() == maxEndpoints && !known.knows("late"),
		"%d members, the late one among them: %v", members(), known.knows("late"))
}

func TestHosts(t *testing.T) {
	for _, c := range []struct {
		list     []string
		has, not []string
	}{
		{nil, nil, []string{"a", "127.0.0.1", ""}},
		{[]string{"*"}, []string{"a", "10.0.0.1", "::1"}, nil},
		{[]string{"GPU-1"}, []string{"gpu-1", "GPU-1.", "gpu-1"}, []string{"gpu-10", "a.gpu-1", "gpu"}},
		{[]string{"*.gpu.example"}, []string{"a.gpu.example", "A.B.GPU.example."},
			[]string{"gpu.example", ".gpu.example", "agpu.example", "a.gpu.example.evil"}},
		{[]string{"10.1.2.3"}, []string{"10.1.2.3", "::ffff:10.1.2.3"}, []string{"10.1.2.4", "10.1.2.3.evil", "010.1.2.3"}},
		{[]string{"10.0.0.0/8", "fd00::/8"}, []string{"10.255.0.1", "fd12::1"},
			[]string{"11.0.0.1", "fe80::1", "fd12::1%eth0", "10.0.0.1.nip.io"}},
		{[]string{"[fd00::1]"}, []string{"fd00::1"}, []string{"fd00::2"}},
	} {
		h, err := ParseHosts(c.list)
		require.NoError(t, err, "%q", c.list)
		for _, host := range c.has {
			assert.True(t, h.Has(host), "%q does not have %q", c.list, host)
		}
		for _, host := range c.not {
			assert.False(t, h.Has(host), "%q has %q", c.list, host)
		}
	}
	for _, bad := range []string{"", "http://h", "h:1", "a*b", "*.*.x", "*.", "10.0.0.0/33", "a b", "user@h", "fe80::1%eth0"} {
		_, err := ParseHosts([]string{bad})
		assert.Error(t, err, "%q is taken for a host", bad)
	}
	for host, want := range map[string]bool{"127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true,
		"LocalHost": true, "10.0.0.1": false, "localhost.evil": false} {
		assert.Equal(t, want, LoopbackHosts().Has(host), "loopback has %q: %v", host, !want)
	}
}

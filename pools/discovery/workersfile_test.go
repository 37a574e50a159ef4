package discovery

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

func TestParseFile(t *testing.T) {
	got, err := ParseFile("w.yaml", []byte(`# two workers
- url: http://10.0.0.1:8000
  role: prefill
  block_size: 32
- {url: "http://10.0.0.2:8000", role: decode, model: org/m, id: d1}
`))
	require.NoError(t, err)
	want := []pools.Worker{
		{ID: "10.0.0.1-8000", Role: pools.Prefill, Address: "http://10.0.0.1:8000", BlockSize: 32},
		{ID: "d1", Role: pools.Decode, Address: "http://10.0.0.2:8000", Model: "org/m"},
	}
	assert.True(t, len(got) == 2 && got[0].Worker.Equal(&want[0]) && got[1].Worker.Equal(&want[1]), "got %+v", got)
	none, err := ParseFile("w.yaml", []byte("[]"))
	assert.True(t, err == nil && len(none) == 0, "no workers: %v, %v", none, err)
}

func TestParseFileNamesTheLine(t *testing.T) {
	for _, test := range []struct{ data, want string }{
		{"", "w.yaml: is empty"},
		{"# nothing yet\n", "w.yaml: is empty"},
		{"url: http://a:1\n", "w.yaml:1: is no list"},
		{"- url: [\n", "w.yaml: line"},
		{"- http://a:1\n", "w.yaml:1: is a single value, not a mapping"},
		{"- url: http://a:1\n- role: both\n", "w.yaml:2 url: is missing"},
		{"- url: http://a:1\n  role: leader\n", "w.yaml:2 role: must be one of prefill, decode, both"},
		{"- url: http://a:1\n- url: \"http://a:1#\"\n", "w.yaml:2 url: must be a scheme, a host and a port, and no more"},
		{"- url: http://a:1\n  kv-topic: \"a\\r\\nb\"\n", "w.yaml:2 kv-topic: must be printable"},
		{"- url: http://a:1\n  colour: red\n", "w.yaml:2 colour: there is no such option; there are role"},
		{"- url: http://a:1\n  block-size: 16\n  block_size: 16\n", "w.yaml:3 block_size: is given on line 2 already"},
		{"- url: http://a:1\n  model:\n", `w.yaml:2 model: takes a single value`},
		{"- url: http://a:1\n  model: [a, b]\n", "takes a single value"},
		{"- url: http://a:1\n- url: http://a:1/\n", "w.yaml:2 url: http://a:1 is listed twice"},
		{"- {url: http://a:1, id: x}\n- {url: http://b:1, id: x}\n", `w.yaml:2 id: "x" is that of two`},
		{"- url: http://a:1\n  <<: {role: both}\n", "takes a single value"},
		{"- &a\n  url: http://a:1\n- *a\n", "not a mapping"},
		{"[]\n---\n[]\n", "second document"},
		{strings.Repeat("- {}\n", maxEndpoints+1), "w.yaml:4097: 4096 workers"},
		{strings.Repeat("#", maxFileBytes+1), "longer than"},
	} {
		_, err := ParseFile("w.yaml", []byte(test.data))
		_, ok := errors.AsType[*setting.Error](err)
		assert.True(t, ok && strings.Contains(err.Error(), test.want), "%.60q: %v, want %q", test.data, err, test.want)
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte("- url: http://a:1\n  role: prefill\n  model: m\n"))
	f.Add([]byte("- {url: \"http://a:1\", block_size: 0x10}\n- &x {url: http://b:1}\n"))
	f.Add([]byte("- ? [a]\n  : b\n"))
	f.Add([]byte("- url: !!binary aGk=\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := ParseFile("f", data)
		if err != nil {
			_, ok := errors.AsType[*setting.Error](err)
			assert.True(t, ok, "%T is no *conf.Error: %v", err, err)
			return
		}
		assert.NoError(t, CheckEndpoints(list), "a list was taken that is none")
		for _, e := range list {
			w, _ := facts{model: "m"}.record(e.Worker, 0)
			assert.NoError(t, w.Validate(), "%+v was taken", e.Worker)
		}
	})
}

// reported collects what a File tells.
type reported struct {
	mu    sync.Mutex
	lists [][]string
}

func (o *reported) publish(es []Endpoint) {
	var ids []string
	for _, e := range es {
		ids = append(ids, e.Worker.ID)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lists = append(o.lists, ids)
}

func (o *reported) last() (ids []string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lists[len(o.lists)-1], len(o.lists)
}

func write(t *testing.T, path, data string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(data), 0o644))
}

func TestFileFollowsEveryKindOfChange(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "workers.yaml")
	write(t, path, "- {url: http://a:1, id: a}\n")
	var o reported
	file, err := OpenFile(path, time.Millisecond, o.publish, quiet)
	require.NoError(t, err)
	running(t, func(ctx context.Context) error { return file.Run(ctx) })
	becomes := func(how string, want ...string) {
		t.Helper()
		within(t, how, func() bool { got, _ := o.last(); return slices.Equal(got, want) })
	}
	becomes("the first list", "a")
	write(t, path, "- {url: http://b:1, id: b}\n") // same size, perhaps the same tick of the clock
	becomes("written in place", "b")

	temp := filepath.Join(dir, "temp")
	write(t, temp, "- {url: http://c:1, id: c}\n")
	require.NoError(t, os.Rename(temp, path))
	becomes("renamed over", "c")

	// As Kubernetes updates a ConfigMap: the file is a link through ..data, which is swapped.
	data := filepath.Join(dir, "..data")
	for _, version := range []string{"v1", "v2"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o755))
		write(t, filepath.Join(dir, version, "workers.yaml"), "- {url: http://k:1, id: "+version+"}\n")
		link := filepath.Join(dir, "..data_tmp")
		require.NoError(t, errors.Join(os.Symlink(version, link), os.Rename(link, data)))
		if version == "v1" {
			require.NoError(t, errors.Join(os.Symlink(filepath.Join("..data", "workers.yaml"), link), os.Rename(link, path)))
		}
		becomes("swapped to "+version, version)
	}
}

func TestBrokenFileKeepsTheLastGoodList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.yaml")
	if _, err := OpenFile(path, 0, func([]Endpoint) {}, quiet); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	write(t, path, "- {url: http://a:1, id: a}\n")
	var o reported
	logs := &logged{}
	file, err := OpenFile(path, 0, o.publish, slog.New(slog.NewTextHandler(logs, nil)))
	require.NoError(t, err)
	const broken = "- {url: http://a:1, id: a}\n- url: http://b:1\n  role: leader\n"
	write(t, path, broken)
	for range 5 {
		file.look()
	}
	is := func(times int, want ...string) {
		t.Helper()
		got, n := o.last()
		assert.True(t, n == times && slices.Equal(got, want), "reported %d times, last %v", n, got)
	}
	is(1, "a")
	assert.Equal(t, 1, logs.count(path+":3 role"), "%s", logs)
	err = file.Reload()
	assert.ErrorContains(t, err, ":3 role", "reloaded by hand")
	require.NoError(t, os.Remove(path))
	file.look()
	file.look()
	assert.Equal(t, 2, logs.count("not applied"), "%s", logs)
	write(t, path, "- {url: http://c:1, id: c}\n")
	file.look()
	is(1, "a") // no change is taken before it came to rest
	file.look()
	file.look()
	is(2, "c")
	write(t, path, "[]\n")
	require.NoError(t, file.Reload())
	is(3)
}

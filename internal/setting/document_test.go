package setting

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

type base struct {
	Name string `yaml:"name"`
}

type plan struct {
	base   `yaml:",inline"`
	Seed   uint64           `yaml:"seed"`
	Size   int              `yaml:"block_size"`
	Share  *float64         `yaml:"share"`
	Wait   time.Duration    `yaml:"wait"`
	On     bool             `yaml:"on"`
	Lists  []item           `yaml:"lists"`
	Seeds  []uint64         `yaml:"seeds"`
	Tables map[string][]int `yaml:"tables"`
	Any    yaml.Node        `yaml:"any"`
	Plain  int
}

type item struct {
	Status int `yaml:"status"`
}

func TestDecode(t *testing.T) {
	doc, err := Parse("f.yaml", []byte("name: n\nseed: 18446744073709551615\nblock_size: 0x10\nshare: 0.5\nwait: 1m30s\non: true\n"+
		"lists: [{status: 1}, {}]\nseeds: [1, 2]\ntables: {a: [1], b: []}\nany: {x: 1}\nplain: 1e3\n"))
	require.NoError(t, err)
	share := 0.5
	want := plan{base: base{"n"}, Seed: 1<<64 - 1, Size: 16, Share: &share, Wait: 90 * time.Second, On: true,
		Lists: []item{{1}, {0}}, Seeds: []uint64{1, 2}, Tables: map[string][]int{"a": {1}, "b": {}}, Plain: 1000}
	got := plan{}
	require.NoError(t, doc.Decode(&got))
	assert.Equal(t, yaml.MappingNode, got.Any.Kind, "a node as it is")
	got.Any = yaml.Node{}
	assert.Equal(t, want, got)
}

func TestDecodeRefusesWithThePlace(t *testing.T) {
	for text, want := range map[string]string{
		"- a":                              "f.yaml:1: is a list, not a mapping",
		"sead: 1":                          "f.yaml:1 sead: there is no such key; the nearest is seed",
		"zzz: 1":                           "f.yaml:1 zzz: there is no such key; there are any, block_size, lists",
		"seed: 1\nseed: 2":                 "f.yaml:2 seed: is given on line 1 already",
		"seed: 1\nblock_size: 2\nseed: 3":  "f.yaml:3 seed: is given on line 1 already",
		"block-size: 1\nblock_size: 2":     "f.yaml:2 block_size: is given on line 1 already\nf.yaml:1 block-size: there is no such key",
		"seed:":                            "f.yaml:1 seed: has no value: leave the key out for the default",
		"seed: -1":                         `f.yaml:1 seed: "-1" is no whole number from 0 to 2^64-1`,
		"block_size: many":                 `f.yaml:1 block_size: "many" is no whole number`,
		"block_size: 1.5":                  `f.yaml:1 block_size: "1.5" is no whole number`,
		"share: x":                         `f.yaml:1 share: "x" is no number`,
		"wait: 5":                          `f.yaml:1 wait: "5" is no duration, as 250ms or 2s`,
		"on: 1":                            `f.yaml:1 on: "1" is neither true nor false`,
		"name: [a]":                        "f.yaml:1 name: is a list, not a single value",
		"lists: a":                         "f.yaml:1 lists: is a single value, not a list",
		"lists:\n- {}\n- {statusx: 1}":     "f.yaml:3 lists[1].statusx: there is no such key; the nearest is status",
		"lists:\n- 1":                      "f.yaml:2 lists[0]: is a single value, not a mapping",
		"lists: &a [*a]":                   "f.yaml:1 lists[0]: is a reference to another value, not a mapping",
		"? [a]\n: b":                       "f.yaml:1: a key is a list",
		"seed: x\nname: [a]":               "f.yaml:1 seed: \"x\" is no whole number from 0 to 2^64-1\nf.yaml:2 name: is a list",
		"seed: " + strings.Repeat("x", 99): `f.yaml:1 seed: "` + strings.Repeat("x", 64) + `… is no`,
	} {
		doc, err := Parse("f.yaml", []byte(text))
		require.NoError(t, err)
		var at *Error
		err = doc.Decode(&plan{})
		assert.True(t, errors.As(err, &at) && strings.HasPrefix(strings.ReplaceAll(err.Error(), `"…`, `…`), want),
			"%q: %v, want %s", text, err, want)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"a: [":          "f.yaml: line 1: did not find",
		"a: 1\n---\nb:": "f.yaml: has a second document",
	} {
		_, err := Parse("f.yaml", []byte(text))
		assert.ErrorContains(t, err, want)
	}
	for _, text := range []string{"", "# only a comment\n", "~", "---\n"} {
		doc, err := Parse("f.yaml", []byte(text))
		assert.True(t, err == nil && doc.Root == nil && doc.Decode(&plan{}) == nil, "%q: %+v, %v, want an empty document", text, doc, err)
	}
}

func TestErrorfFindsTheDeepestLine(t *testing.T) {
	doc, err := Parse("f.yaml", []byte("# first\nrules:\n- {}\n- status: 1\n  delay: 2\n"))
	require.NoError(t, err)
	for path, line := range map[string]int{"": 2, "none": 2, "rules": 3, "rules[1]": 4, "rules[1].delay": 5, "rules[1].none": 4,
		"rules[7].x": 3, "rules[x]": 3} {
		got := doc.Errorf(path, "is wrong")
		assert.True(t, got.Line == line && got.Name == path, "%q: %v, want line %d", path, got, line)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"prefill-1", "decode-1", "decode-2"}
	for name, want := range map[string]string{"decode-11": "decode-1", "decode-2": "decode-2", "prefil-1": "prefill-1"} {
		assert.Equal(t, want, Nearest(name, known), name)
	}
	known = []string{"role", "worker-port", "router-mode", "router-ttl-secs"}
	for name, want := range map[string]string{"port": "worker-port", "rol": "role", "mode": "router-mode", "router": "router-mode",
		"x": "", "no": "", "tls-cert-path": "", "cluster": "", "": "", "rotuer-mode": "router-mode"} {
		assert.Equal(t, want, Nearest(name, known), name)
	}
	assert.Empty(t, Nearest("anything", nil))
	assert.Equal(t, 100, distance(strings.Repeat("a", 1000), "b"), "what a name costs is bounded")
}

// Nothing that a file holds makes Decode panic, and what it refuses has a place.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{"", "seed: 1", "lists: &a [*a]", "- <<: {a: 1}", "? [a]\n: b", "any: *x", "tables: {a: [b]}",
		"seed: !!binary aGk="} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, err := Parse("f", data)
		if err == nil {
			err = doc.Decode(&plan{})
		}
		_, ok := errors.AsType[*Error](err)
		assert.True(t, err == nil || ok, "%T is no *Error: %v", err, err)
	})
}

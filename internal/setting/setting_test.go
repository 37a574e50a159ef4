package setting

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// room stands for a room's Config.
type room struct {
	Port  int           `flag:"port,old-port" default:"8000" range:"0..65535" help:"h"`
	Wait  time.Duration `flag:"wait" default:"60s" range:"1ms.." help:"h" group:"Own"`
	Beat  time.Duration `flag:"beat" default:"15s" range:"0|100ms.." help:"h"`
	TTL   time.Duration `flag:"ttl-secs" default:"120" unit:"s" range:"0.001..1000" help:"h"`
	Bytes int           `flag:"bytes" default:"64MiB" unit:"bytes" range:"1KiB.." help:"h"`
	Seed  uint64        `flag:"seed" default:"0" range:"0.." help:"h"`
	Share float64       `flag:"share" default:"0.5" range:"0..1" help:"h"`
	Mode  string        `flag:"mode" default:"a-b" oneof:"a-b=first|c=second" help:"h"`
	LRU   bool          `flag:"policy" default:"ttl" oneof:"ttl=by age|lru=by use" help:"h"`
	On    bool          `flag:"on" default:"true" help:"h"`
	Hosts []string      `flag:"hosts" form:"host" help:"h"`
	Part  part
	Inner int `default:"7" range:"1..9"`
	Free  int
}

type part struct {
	Limit int `flag:"limit" default:"3" range:"1..5" help:"h"`
}

func TestDefaultsAndGroups(t *testing.T) {
	assert.Equal(t, room{
		Port: 8000, Wait: time.Minute, Beat: 15 * time.Second, TTL: 2 * time.Minute, Bytes: 64 << 20, Share: .5, Mode: "a-b", On: true,
		Hosts: []string{}, Part: part{Limit: 3}, Inner: 7,
	}, Default[room]())
	type whole struct {
		Room room `group:"Outer"`
	}
	for _, s := range Of(whole{}) {
		want := "Outer"
		if s.Name == "wait" {
			want = "Own"
		}
		assert.Equal(t, want, s.Group, s.Name)
		assert.NotContains(t, s.Name, "Inner")
	}
	partial := room{Port: 1, Part: part{Limit: 5}}
	Fill(&partial)
	assert.True(t, partial.Port == 1 && partial.Part.Limit == 5 && partial.Wait == time.Minute, "filled: %+v", partial)
}

// What Get returns, Format writes, Parse reads and Set puts is the same value.
func TestValuesGoRound(t *testing.T) {
	from := Default[room]()
	from.Seed, from.LRU, from.TTL, from.Hosts, from.Mode = math.MaxInt64, true, 2500*time.Millisecond, []string{"h"}, "c"
	var to room
	Fill(&to)
	for _, s := range Of(from) {
		v := s.Get(&from)
		text := s.Format(v)
		if list, ok := v.([]string); ok {
			text = strings.Join(list, ",")
		}
		back, err := s.Parse(text)
		require.NoError(t, err, s.Name)
		s.Set(&to, back)
	}
	assert.Equal(t, from, to)
	to.Hosts[0] = "changed"
	assert.Equal(t, "h", from.Hosts[0], "two configs share a list")
}

func TestCheckNamesWhatIsWrong(t *testing.T) {
	for want, spoil := range map[string]func(c *room){
		"port: 65536 is above":  func(c *room) { c.Port = 65536 },
		"wait: 0s is below 1ms": func(c *room) { c.Wait = 0 },
		"beat: 1ns is below 100ms, the least it may be but for 0": func(c *room) { c.Beat = 1 },
		"beat: -1ns is below":         func(c *room) { c.Beat = -1 },
		"ttl-secs: 0.0 is below":      func(c *room) { c.TTL = 0 },
		"bytes: 100 is below 1KiB":    func(c *room) { c.Bytes = 100 },
		"share: NaN is not a finite":  func(c *room) { c.Share = math.NaN() },
		"share: +Inf is not a finite": func(c *room) { c.Share = math.Inf(1) },
		`mode: "d" is not one of`:     func(c *room) { c.Mode = "d" },
		`hosts: "a b" is not an IP`:   func(c *room) { c.Hosts = []string{"h", "a b"} },
		"limit: 6 is above 5":         func(c *room) { c.Part.Limit = 6 },
		"setting.room.Inner: 10":      func(c *room) { c.Inner = 10 },
	} {
		c := Default[room]()
		spoil(&c)
		err := Check(&c)
		_, ok := errors.AsType[*Error](err)
		assert.True(t, ok && strings.HasPrefix(err.Error(), want), "got %v, want %s", err, want)
	}
	zeroBeat := Default[room]()
	assert.NoError(t, Check(&zeroBeat))
	zeroBeat.Beat, zeroBeat.Mode, zeroBeat.Part, zeroBeat.Seed = 0, "a_b", part{}, math.MaxUint64
	assert.NoError(t, Check(&zeroBeat), "0, another spelling and a part that is not in use")
}

func TestBadTagsPanic(t *testing.T) {
	for want, config := range map[string]any{
		"not kebab case":                x(0, `flag:"a_b" default:"1"`),
		`the name "" is not kebab case`: x(0, `flag:"a," default:"1"`),
		"negation":                      x(false, `flag:"no-x" default:"true"`),
		"taken":                         x(0, `flag:"config" default:"1"`),
		"the default":                   x(0, `flag:"x" default:"one"`),
		"above 0":                       x(0, `flag:"x" default:"1" range:"..0"`),
		"the range":                     x(0, `flag:"x" default:"1" range:"low.."`),
		"LEAST..MOST":                   x(0, `flag:"x" default:"1" range:"3"`),
		"has no range":                  x("", `flag:"x" range:"1.."`),
		"only a string or a bool":       x(0, `flag:"x" default:"1" oneof:"1|2"`),
		"not one of":                    x("", `flag:"x" default:"3" oneof:"1|2"`),
		"one of two":                    x(false, `flag:"x" default:"a" oneof:"a|b|c"`),
		"no Choices":                    x("", `flag:"x" default:"a" oneof:"-"`),
		"cannot be set":                 x([]int{}, `flag:"x"`),
		`no unit "km"`:                  x(0, `flag:"x" default:"1" unit:"km"`),
	} {
		func() {
			defer func() { assert.Contains(t, fmt.Sprint(recover()), want) }()
			Of(config)
		}()
	}
}

func TestForms(t *testing.T) {
	for form, texts := range map[string]map[string]bool{
		"host": {"127.0.0.1": true, "::1": true, "fe80::1%eth0": true, "localhost": true, "": false, "a:80": false, "a b": false},
		"hostport": {"127.0.0.1:8001": true, ":8001": true, "[::1]:0": true, "8001": false, "h": false, "h:http": false,
			"h:65536": false},
		"address nats tls": {"nats://h:1": true, "h:1": true, "tls://u:p@h:1, h:2": true, "http://h:1": false, "nats://": false,
			"a b:1": false, "ftp://u:secret@h": false},
		"url http https": {"http://h": true, "https://h:1/v1": true, "http://h:1,model=m": true, "h:1": false, "nats://h": false,
			"http://": false, "ftp://u:secret@h": false},
		"path": {"/a": true, "/a/b": true, "a": false, "/": false, "/a/": false},
	} {
		for text, ok := range texts {
			err := checkForm(form, text)
			assert.Equal(t, ok, err == nil, "%s %q: %v", form, text, err)
			assert.False(t, err != nil && strings.Contains(err.Error(), "secret"), "%v", err)
		}
	}
}

// x is a config of one setting with these tags.
func x(kind any, tags string) any {
	field := reflect.StructField{Name: "X", Type: reflect.TypeOf(kind), Tag: reflect.StructTag(tags + ` help:"h"`)}
	return reflect.New(reflect.StructOf([]reflect.StructField{field})).Elem().Interface()
}

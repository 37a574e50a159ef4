package setting

import (
	"bytes"
	"errors"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// files is a readFile over a map; a path that is not in it is not there.
type files map[string]string

func (f files) read(path string) ([]byte, error) {
	text, ok := f[path]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return []byte(text), nil
}

// printed is the line that Print writes for one setting.
func printed(t *testing.T, r *Resolved, name string) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.Print(&b))
	for line := range strings.Lines(b.String()) {
		if strings.HasPrefix(line, name+": ") {
			return strings.TrimSuffix(line, "\n")
		}
	}
	t.Fatalf("Print has no line for %s:\n%s", name, b.String())
	return ""
}

func TestResolveFindsValueAndSource(t *testing.T) {
	const file = "\nrouter-mode: random\nrouter_queue_threshold: 2\nmax-body-bytes: 1GiB\netcd-endpoints: [a:2379, 'http://b:2379']\nkv_events: off\n"
	all := files{
		"g.yaml": file, "list.yaml": "prefill_url:\n- http://a:1,model=m,id=x\n- http://b:2\n",
		"text.yaml": "prefill-url: |\n  http://a:1,model=m,id=x\n  http://b:2\n",
	}
	const workers = `prefill-url: ["http://a:1,model=m,id=x", "http://b:2"]  # ` // a URL's own commas stay with it
	tests := []struct {
		name string
		args []string
		env  []string
		want string
	}{
		{"default", nil, nil, "http-port: 8000  # default"},
		{"file", []string{"--config", "g.yaml"}, nil, "router-mode: random  # file g.yaml:2"},
		{"file named in the environment", nil, []string{"TANDEM_CONFIG=g.yaml"}, "router-mode: random  # file g.yaml:2"},
		{"the flag names the file before the environment does", []string{"--config=g.yaml"}, []string{"TANDEM_CONFIG=absent"},
			"router-mode: random  # file g.yaml:2"},
		{"snake key", []string{"--config=g.yaml"}, nil, "router-queue-threshold: 2.0  # file g.yaml:3"},
		{"sequence", []string{"--config=g.yaml"}, nil, `etcd-endpoints: ["a:2379", "http://b:2379"]  # file g.yaml:5`},
		{"older key", []string{"--config=g.yaml"}, nil, "router-kv-events: false  # file g.yaml:6"},
		{"DYN_ over file", []string{"--config=g.yaml"}, []string{"DYN_ROUTER_MODE=kv"}, "router-mode: kv  # env DYN_ROUTER_MODE"},
		{"TANDEM_ over DYN_", nil, []string{"DYN_ROUTER_MODE=kv", "TANDEM_ROUTER_MODE=random"}, "router-mode: random  # env TANDEM_ROUTER_MODE"},
		{"flag over TANDEM_", []string{"--router-mode=kv"}, []string{"TANDEM_ROUTER_MODE=random"}, "router-mode: kv  # flag"},
		{"a variable of deploy/compose", nil, []string{"TANDEM_NATS_IMAGE=nats:2", "TANDEM_IMAGE=x"}, "http-port: 8000  # default"},
		{"empty variable", nil, []string{"TANDEM_HTTP_PORT="}, "http-port: 8000  # default"},
		{"the older name on a higher level wins", []string{"--kv-events"}, []string{"TANDEM_ROUTER_KV_EVENTS=false"},
			"router-kv-events: true  # flag"},
		{"both names, one value", []string{"--kv-overlap-score-weight=2", "--router-kv-overlap-score-weight=2.0"}, nil,
			"router-kv-overlap-score-weight: 2.0  # flag"},
		{"switch on", []string{"--decode-fallback"}, []string{"TANDEM_DECODE_FALLBACK=false"}, "decode-fallback: true  # flag"},
		{"switch by value", []string{"--decode-fallback=no"}, nil, "decode-fallback: false  # flag"},
		{"the last flag counts", []string{"--http-port=1", "--http-port", "2"}, nil, "http-port: 2  # flag"},
		{"the last switch counts", []string{"--no-decode-fallback", "--decode-fallback"}, nil, "decode-fallback: true  # flag"},
		{"a repeated list adds up", []string{"--etcd-endpoints=a:1,b:1", "--etcd-endpoints", "c:1"}, nil,
			`etcd-endpoints: ["a:1", "b:1", "c:1"]  # flag`},
		{"negative number as a word of its own", []string{"--router-queue-threshold", "-1"}, nil, "router-queue-threshold: -1.0  # flag"},
		{"duration", []string{"--queue-timeout=90s"}, nil, "queue-timeout: 1m30s  # flag"},
		{"zero duration", []string{"--sse-heartbeat=0"}, nil, "sse-heartbeat: 0s  # flag"},
		{"round duration", []string{"--queue-timeout=2h"}, nil, "queue-timeout: 2h  # flag"},
		{"binary bytes", []string{"--max-body-bytes=2097152"}, nil, "max-body-bytes: 2MiB  # flag"},
		{"decimal bytes", []string{"--max-body-bytes=3 MB"}, nil, "max-body-bytes: 3000000  # flag"},
		{"an overridden DYN_ value need not be ours", []string{"--router-mode=kv"}, []string{"DYN_ROUTER_MODE=direct"},
			"router-mode: kv  # flag"},
		{"another name of a list", []string{"--static-endpoint=http://a:1"}, nil, `worker-url: ["http://a:1"]  # flag`},
		{"a variable with blanks", nil, []string{"DYN_STATIC_ENDPOINT=http://a:1 http://b:1"},
			`worker-url: ["http://a:1", "http://b:1"]  # env DYN_STATIC_ENDPOINT`},
		{"workers of one flag", []string{"--prefill-url=http://a:1,model=m,id=x http://b:2"}, nil, workers + "flag"},
		{"workers of two flags", []string{"--prefill-url", "http://a:1,model=m,id=x", "--prefill-url=http://b:2"}, nil, workers + "flag"},
		{"workers of a variable", nil, []string{"TANDEM_PREFILL_URL=\n http://a:1,model=m,id=x\n\thttp://b:2 "},
			workers + "env TANDEM_PREFILL_URL"},
		{"workers of a file's list", []string{"--config=list.yaml"}, nil, workers + "file list.yaml:1"},
		{"workers of a file's text", []string{"--config=text.yaml"}, nil, workers + "file text.yaml:1"},
		{"foreign DYN_", nil, []string{"DYN_NAMESPACE=x", "DYN_LOG=debug"}, "log-level: info  # default"},
		{"another command's variable", nil, []string{"TANDEM_ROLE=prefill"}, "log-level: info  # default"},
		{"Kubernetes service links", nil, []string{
			"TANDEM_SERVICE_HOST=10.0.0.1", "TANDEM_PORT=tcp://10.0.0.1:80", "TANDEM_GATEWAY_PORT_8000_TCP_ADDR=10.0.0.1",
			"TANDEM_GATEWAY_SERVICE_PORT_HTTP=80", "TANDEM_GATEWAY_PORT_8000_TCP=tcp://10.0.0.1:8000",
		}, "http-port: 8000  # default"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, _, err := gatewaySet().Resolve(tt.args, tt.env, all.read)
			require.NoError(t, err)
			name, _, _ := strings.Cut(tt.want, ":")
			assert.Equal(t, tt.want, printed(t, r, name))
			roundTrip(t, gatewaySet(), r)
		})
	}
}

func TestResolveSaysWhereItWasWrong(t *testing.T) {
	tests := []struct {
		name string
		args []string
		env  []string
		file string
		want []string // each on a line of its own
	}{
		{"unknown flag", []string{"--router-mod=kv"}, nil, "",
			[]string{"flag --router-mod: there is no such setting; the nearest is --router-mode"}},
		{"one dash", []string{"-http-port", "1"}, nil, "", []string{"flag -http-port: there is no such setting; the nearest is --http-port"}},
		{"no value", []string{"--http-port"}, nil, "", []string{"flag --http-port: a value is missing"}},
		{"a flag where a value should be", []string{"--http-host", "--http-port=1"}, nil, "", []string{"flag --http-host: a value is missing"}},
		{"value behind a switch", []string{"--decode-fallback", "false"}, nil, "",
			[]string{"flag --decode-fallback: is a switch: write --decode-fallback=false"}},
		{"value in a negation", []string{"--no-decode-fallback=false"}, nil, "",
			[]string{"flag --no-decode-fallback: takes no value: write --decode-fallback=false"}},
		{"negated number", []string{"--no-http-port"}, nil, "", []string{"flag --no-http-port: there is no such name: --no-http-port"}},
		{"no unit", []string{"--queue-timeout=60"}, nil, "", []string{`flag --queue-timeout: "60" is not a duration of up to a year`}},
		{"a duration without end", []string{"--stream-silence=2562047h47m"}, nil, "",
			[]string{`flag --stream-silence: "2562047h47m" is not a duration of up to a year`}},
		{"unknown unit", []string{"--max-body-bytes=5MX"}, nil, "", []string{`flag --max-body-bytes: "5MX" is not a number of bytes`}},
		{"a duration past all ends", []string{"--stream-silence=9999999h"}, nil, "",
			[]string{`flag --stream-silence: "9999999h" is not a duration of up to a year`}},
		{"more bytes than there are", []string{"--max-body-bytes=99999999TiB"}, nil, "",
			[]string{`flag --max-body-bytes: "99999999TiB" is out of range`}},
		{"scheme", []string{"--nats-url=http://u:secret@h:4222"}, nil, "",
			[]string{`flag --nats-url: the scheme of "h:4222" is none of nats, tls, ws, wss`}},
		{"a mistake is not covered up by a repetition", []string{"--http-port=x", "--http-port=1"}, nil, "",
			[]string{`flag --http-port: "x" is not`}},
		{"unknown variable", nil, []string{"TANDEM_HTP_PORT=1"}, "",
			[]string{"TANDEM_HTP_PORT: there is no such setting; the nearest is TANDEM_HTTP_PORT"}},
		{"lower-case variable", nil, []string{"TANDEM_http_port=1"}, "",
			[]string{"TANDEM_http_port: there is no such setting; the nearest is TANDEM_HTTP_PORT"}},
		{"negated variable", nil, []string{"TANDEM_NO_ROUTER_KV_EVENTS=true"}, "",
			[]string{"TANDEM_NO_ROUTER_KV_EVENTS: there is no such name: --no-router-kv-events is the flag, elsewhere set TANDEM_ROUTER_KV_EVENTS to false"}},
		{"a port that Kubernetes did not make", nil, []string{"TANDEM_PORT=8000"}, "", []string{"TANDEM_PORT: there is no such setting"}},
		{"another command's flag", []string{"--role=prefill"}, nil, "", []string{"flag --role: there is no such setting"}},
		{"old and new flag", []string{"--kv-overlap-score-weight=2", "--router-kv-overlap-score-weight=3"}, nil, "",
			[]string{"flag --kv-overlap-score-weight and flag --router-kv-overlap-score-weight: two names of one setting have 2.0 and 3.0; set only router-kv-overlap-score-weight"}},
		{"old and new switch", []string{"--router-kv-events", "--no-kv-events"}, nil, "",
			[]string{"flag --router-kv-events and flag --no-kv-events: two names of one setting have true and false"}},
		{"old and new variable, overridden", []string{"--router-kv-events"}, []string{"DYN_ROUTER_KV_EVENTS=true", "DYN_KV_EVENTS=false"}, "",
			[]string{"DYN_KV_EVENTS and DYN_ROUTER_KV_EVENTS: two names of one setting have false and true"}},
		{"old and new key", nil, nil, "kv-events: true\nrouter_kv_events: false\n",
			[]string{"g.yaml:1 kv-events and g.yaml:2 router_kv_events: two names of one setting have true and false"}},
		{"unknown key", nil, nil, "http-port: 1\nrouter-mods: kv\n",
			[]string{"g.yaml:2 router-mods: there is no such setting; the nearest is router-mode"}},
		{"negated key", nil, nil, "no-router-kv-events: true",
			[]string{"g.yaml:1 no-router-kv-events: there is no such name: --no-router-kv-events is the flag, elsewhere set router-kv-events to false"}},
		{"duplicate key in both spellings", nil, nil, "http-port: 1\nlog-level: info\nhttp_port: 1\n",
			[]string{"g.yaml:3 http_port: is given on line 1 already"}},
		{"wrong type", nil, nil, "http-port: [1]", []string{"g.yaml:1 http-port: takes a whole number, not a list"}},
		{"mapping", nil, nil, "etcd-endpoints: {a: 1}", []string{"g.yaml:1 etcd-endpoints: takes a list, not a mapping"}},
		{"nested list", nil, nil, "etcd-endpoints: [a:1, [b:1]]", []string{"g.yaml:1 etcd-endpoints: item 2 is a list, not a value"}},
		{"two workers in one item", nil, nil, "worker-url: [\"http://a:1 http://b:1\"]", []string{"g.yaml:1 worker-url: "}},
		{"nothing behind a key", nil, nil, "nats-url:\n", []string{"g.yaml:1 nats-url: has no value: leave the key out for the default"}},
		{"file in a file", nil, nil, "config: other.yaml", []string{"g.yaml:1 config: a file cannot name another"}},
		{"overridden key is checked", []string{"--http-port=1"}, nil, "http-port: -1", []string{"g.yaml:1 http-port: -1 is below 0"}},
		{"not a mapping", nil, nil, "- a\n", []string{"g.yaml:1: settings are a mapping, as router-mode: kv; this is a list"}},
		{"two documents", nil, nil, "http-port: 1\n---\nhttp-port: 2\n", []string{"g.yaml: has a second document"}},
		{"not YAML", nil, nil, "a: [\n", []string{"g.yaml: line 1: did not find expected node content"}},
		{"no file", []string{"--config=absent.yaml"}, nil, "", []string{"flag --config: open absent.yaml: file does not exist"}},
		{"no file's name", []string{"--config="}, nil, "", []string{"flag --config: a file's name is missing"}},
		{"several at once", []string{"--http-port=x"}, []string{"TANDEM_LOG_LEVEL=loud"}, "queue-limit: x", []string{
			`flag --http-port: "x" is not a whole number`,
			`TANDEM_LOG_LEVEL: "loud" is not one of debug, info, warn, error`,
			`g.yaml:1 queue-limit: "x" is not a whole number`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := files{"g.yaml": tt.file}
			args := append([]string{"--config=g.yaml"}, tt.args...)
			r, rest, err := gatewaySet().Resolve(args, tt.env, tree.read)
			require.True(t, err != nil && r == nil && rest == nil, "accepted: %v", r)
			assert.True(t, tt.name != "no file" || errors.Is(err, fs.ErrNotExist), "%v does not wrap fs.ErrNotExist", err)
			assert.True(t, errors.As(err, new(*Error)),
				"%T is no *Error", err)
			lines := strings.Split(err.Error(), "\n")
			assert.Len(t, lines, len(tt.want), "problems:\n%v", err)
			for _, want := range tt.want {
				assert.True(t, slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, want) }),
					"got  %v\nwant %s", err, want)
			}
		})
	}
}

func TestResolveReturnsTheRest(t *testing.T) {
	for args, want := range map[string][]string{
		"--http-port 1": nil, "drain --http-port 1 worker-1": {"drain", "worker-1"}, "a -- --http-port -h": {"a", "--http-port", "-h"},
		"- ": {"-", ""},
	} {
		_, rest, err := gatewaySet().Resolve(strings.Split(args, " "), nil, files{}.read)
		assert.True(t, err == nil && slices.Equal(rest, want), "%s: got %q, %v, want %q", args, rest, err, want)
	}
}

func TestResolveReportsHelpBeforeMistakes(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"-h"}, {"--http-port=x", "--help"}} {
		if _, _, err := gatewaySet().Resolve(args, []string{"TANDEM_NOBODY=1"}, files{}.read); !errors.As(err, new(Asked)) {
			t.Errorf("%q: %v", args, err)
		}
	}
	for text, want := range map[string]Asked{
		"--help": {}, "-h queue": {Topic: "queue"}, "--help --http-port 8": {Topic: "--http-port"}, "--help=queue x": {Topic: "queue"},
		"--help-all": {All: true}, "--help-all x": {All: true}, "list --help": {},
	} {
		_, _, err := gatewaySet().Resolve(strings.Fields(text), nil, files{}.read)
		if got, ok := errors.AsType[Asked](err); !ok || got != want {
			t.Errorf("%s asks for %+v, want %+v", text, got, want)
		}
	}
}

func TestResolveTakesEmptyFiles(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "---\n", "null\n", "{}\n"} {
		if _, _, err := gatewaySet().Resolve([]string{"--config=f"}, nil, files{"f": text}.read); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestAnotherCommandsKeyIsPassedOver(t *testing.T) {
	set := NewSet(new(another), new(sample))
	r, _, err := set.Resolve([]string{"--config=f"}, []string{"TANDEM_HTTP_PORT=nonsense"}, files{"f": "role: decode\nrouter-mode: kv\n"}.read)
	require.NoError(t, err)
	assert.Equal(t, "role: decode  # file f:1", printed(t, r, "role"))
	assert.Empty(t, r.Source("router-mode"), "the set took over another's setting from")
}

// DYN_ variables that no command knows are named, unless they ask for protection:
// those are refused.
func TestUnknownDynVariables(t *testing.T) {
	set := NewSet(new(another), new(sample))
	r, _, err := set.Resolve(nil, []string{
		"DYN_ROL=x", "DYN_NAMESPACE=n", "DYN_ROUTER_MODE=kv", "DYN_ROLE=decode", "DYN_EMPTY=", "DYN_TOKEN_ECHO_DELAY_MS=1", "DYN_MAX_TOKENS=1",
		"DYN_AUTH_SERVICE_HOST=10.0.0.1", "DYN_AUTH_PORT=tcp://10.0.0.1:80", "DYN_DISABLE_FRONTEND_NVEXT=false",
	}, files{}.read)
	require.NoError(t, err)
	var servers struct {
		Etcd []string `flag:"etcd-endpoints" help:"Servers."`
	}
	dynamo, _, err := NewSet(&servers).Resolve(nil, []string{"ETCD_ENDPOINTS=http://etcd:2379", "NATS_SERVER=nats://nats"}, files{}.read)
	if err != nil || len(servers.Etcd) > 0 ||
		!reflect.DeepEqual(dynamo.UnknownVariables(), []string{"ETCD_ENDPOINTS (here TANDEM_ETCD_ENDPOINTS)"}) {
		t.Errorf("Dynamo's server: %v, %v", servers.Etcd, err)
	}
	want := []string{"DYN_DISABLE_FRONTEND_NVEXT", "DYN_MAX_TOKENS", "DYN_NAMESPACE", "DYN_ROL (the nearest is DYN_ROLE)",
		"DYN_TOKEN_ECHO_DELAY_MS"}
	assert.Equal(t, want, r.UnknownVariables(), "unknown")
	for _, variable := range []string{
		"DYN_TLS_CERT_PATH=c", "DYN_TLS_KEY_PATH=k", "DYN_TCP_TLS_CA_PATH=c", "DYN_API_KEY=k", "DYN_AUTH_TOKEN=t", "DYN_AUTH_TOKEN_FILE=f",
		"DYN_DISABLE_FRONTEND_NVEXT=true", "DYN_DISABLE_FRONTEND_ADMIN_API=1",
	} {
		name, value, _ := strings.Cut(variable, "=")
		_, _, err := set.Resolve(nil, []string{variable}, files{}.read)
		if err == nil || !strings.HasPrefix(err.Error(), name+": there is no such setting here") || strings.Contains(err.Error(), "="+value) {
			t.Errorf("%s: %v", variable, err)
		}
	}
}

// roundTrip prints r, reads that as a file, and fails where a value differs.
func roundTrip(t *testing.T, set *Set, r *Resolved) {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.Print(&b))
	again, _, err := set.Resolve([]string{"--config=printed"}, nil, files{"printed": b.String()}.read)
	require.NoError(t, err, "what Print wrote is refused\n%s", b.String())
	for name, v := range r.values {
		if slices.ContainsFunc(set.rows, func(s *Setting) bool { return s.Name == name && s.Masked }) {
			v.value = masked(v.value)
		}
		assert.Equal(t, v.value, again.values[name].value, "%s and came back as X\n%s", name, b.String())
	}
}

func TestPrintMasksPasswords(t *testing.T) {
	s := new(sample)
	set := NewSet(s)
	r, _, err := set.Resolve([]string{
		"--etcd-endpoints=http://root:s3cret@a:1,b:2,root:s3cret@c:3", "--nats-url=nats://user:s3cret@n:4222, nats://s3cret@m:4222,nats://k:4222",
	}, nil, files{}.read)
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, r.Print(&out))
	assert.NotContains(t, out.String(), "s3cret", "a password is printed")
	for _, line := range []string{
		`etcd-endpoints: ["http://xxxxx@a:1", "b:2", "xxxxx@c:3"]  # flag`,
		`nats-url: "nats://xxxxx@n:4222, nats://xxxxx@m:4222,nats://k:4222"  # flag`,
	} {
		assert.Contains(t, out.String(), line, "no line X")
	}
	if d := s.Discovery; d.Etcd[0] != "http://root:s3cret@a:1" || !strings.HasPrefix(d.NATSURL, "nats://user:s3cret@") {
		t.Errorf("masked where it is used: %+v", s)
	}
}

func TestPrintRoundTrips(t *testing.T) {
	set := NewSet(new(everything))
	for name, args := range map[string][]string{
		"numbers": {"--router-temperature=1e-9", "--router-queue-threshold=-1e30", "--max-body-bytes=1025",
			"--gateway-seed=9223372036854775807"},
		"durations": {"--queue-timeout=1h0m1s", "--sample-ttl=1h", "--drain-timeout=100ms", "--sample-timeout=10m"},
		"text that YAML would take for something else": {"--role", "null"},
		"number as text":             {"--role", "1e3"},
		"quotes, comments, controls": {"--role", "a # b: \"c\"\t\n\x01\\ \u2028\ufeff…🙂 '"},
		"blanks":                     {"--role", "  "},
		"nothing":                    {"--role="},
	} {
		t.Run(name, func(t *testing.T) {
			r, _, err := set.Resolve(args, nil, files{}.read)
			require.NoError(t, err)
			roundTrip(t, set, r)
		})
	}
}

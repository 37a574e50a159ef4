package pools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// checkKeys refuses a record that is not one JSON object, or that repeats a top-level key. encoding/json ignores case,
// so "ID" and "id" are the same key.
func checkKeys(record []byte) error {
	if !json.Valid(record) || !bytes.HasPrefix(bytes.TrimLeft(record, " \t\r\n"), []byte("{")) {
		return fmt.Errorf("worker record: not one JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(record))
	seen := make(map[string]bool)
	_, _ = dec.Token() // the brace; the record is valid JSON, so nothing below fails either
	for dec.More() {
		key, _ := dec.Token()
		name := strings.ToLower(key.(string))
		if seen[name] {
			if textProblem(name, 1, MaxIDBytes) != "" {
				name = "a key"
			}
			return &InvalidError{Field: name, Problem: "is there twice"}
		}
		seen[name] = true
		var skipped json.RawMessage
		_ = dec.Decode(&skipped)
	}
	return nil
}

// The functions below describe what is wrong with a value, "" for nothing.

func unlessEmpty(s string, problem func(string) string) string {
	if s == "" {
		return ""
	}
	return problem(s)
}

func idProblem(s string) string { return plainProblem(s, MaxIDBytes) }

func plainProblem(s string, most int) string {
	if s == "" || len(s) > most {
		return fmt.Sprintf("must be 1 to %d bytes, is %d", most, len(s))
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return fmt.Sprintf("must be of A-Z, a-z, 0-9, '.', '_' and '-', byte %d is %q", i, c)
		}
	}
	return ""
}

func textProblem(s string, least, most int) string {
	if len(s) < least || len(s) > most {
		return fmt.Sprintf("must be %d to %d bytes, is %d", least, most, len(s))
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "must be printable UTF-8"
	}
	return ""
}

func oneOf(s string, allowed ...string) string {
	if slices.Contains(allowed, s) {
		return ""
	}
	named := slices.DeleteFunc(slices.Clone(allowed), func(a string) bool { return a == "" })
	return fmt.Sprintf("must be one of %s, is %.64q", strings.Join(named, ", "), s)
}

func countProblem(n, least, most int) string {
	if n < least || n > most {
		return fmt.Sprintf("must be %d to %d, is %d", least, most, n)
	}
	return ""
}

func addressProblem(s string) string {
	u, err := url.Parse(s)
	_, rest, _ := strings.Cut(s, "://")
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "must be an http or https URL with a host"
	case strings.ContainsAny(rest, "/?#@"):
		return "must be a scheme, a host and a port, and no more"
	}
	at := u.Host
	if u.Port() == "" {
		at += ":80"
	}
	if hostPortProblem(at) != "" {
		return "must have a host name in ASCII or an IP address, and a port from 1 to 65535 or none"
	}
	return ""
}

// The texts on addresses leave the value out: it may carry a password.

func hostPortProblem(s string) string {
	host, port, err := net.SplitHostPort(s)
	n, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || n == 0 || !isHost(host) || net.JoinHostPort(host, strconv.FormatUint(n, 10)) != s {
		return "must be host:port, a host name in ASCII or an IP address and a port from 1 to 65535"
	}
	return ""
}

// isHost reports whether s is an IP address, or a name as DNS has it, with underscores too.
func isHost(s string) bool {
	name, zone, zoned := strings.Cut(s, "%")
	if _, err := netip.ParseAddr(name); err == nil {
		return !zoned || strings.Contains(name, ":") && plainProblem(zone, MaxIDBytes) == ""
	}
	return plainProblem(s, maxHostBytes) == "" && !strings.HasPrefix(s, "-") && !strings.HasPrefix(s, ".") && !strings.Contains(s, "..")
}

// tcpProblem looks at an endpoint of ZeroMQ's form, which has a port for each rank. bind allows the host to be any.
func tcpProblem(s string, ranks int, bind bool) string {
	rest, ok := strings.CutPrefix(s, "tcp://")
	if !bind && Listens(s) {
		return "must name a host"
	}
	if port, star := strings.CutPrefix(rest, "*:"); star {
		rest = "0.0.0.0:" + port
	}
	if !ok || hostPortProblem(rest) != "" {
		return "must be tcp://HOST:PORT, a host name in ASCII or an IP address and a port from 1 to 65535"
	}
	if n, _ := strconv.Atoi(rest[strings.LastIndexByte(rest, ':')+1:]); n+ranks-1 > math.MaxUint16 {
		return fmt.Sprintf("must leave a port for each of %d ranks", ranks)
	}
	return ""
}

// Listens reports whether an endpoint of KV events, as tcp://*:5557, names no
// engine's host: then the engine connects to its follower, which opens a port.
func Listens(endpoint string) bool {
	host, _, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	return err == nil && (host == "*" || host == "0.0.0.0" || host == "::")
}

func kvEventsProblem(w *Worker) string {
	switch zmq := w.KVEvents == "zmq"; {
	case zmq && w.KVEndpoint == "":
		return "is zmq without an endpoint"
	case !zmq && (w.KVEndpoint != "" || w.KVReplay != "" || w.KVTopic != ""):
		return "must be zmq where there is an endpoint, a replay endpoint or a topic of KV events"
	}
	return oneOf(w.KVEvents, "", "nats", "zmq", "none")
}

func topologyProblem(labels map[string]string) string {
	if len(labels) > maxLabels {
		return fmt.Sprintf("must have at most %d labels, has %d", maxLabels, len(labels))
	}
	for key, value := range labels {
		if textProblem(key, 1, maxLabelBytes) != "" || textProblem(value, 0, maxLabelBytes) != "" {
			return fmt.Sprintf("must have printable labels of at most %d bytes", maxLabelBytes)
		}
	}
	return ""
}

// namesProblem looks at a list of names, none of which is there twice or in taken.
func namesProblem(names []string, most, mostBytes int, taken ...string) string {
	if len(names) > most {
		return fmt.Sprintf("has %d names, the limit is %d", len(names), most)
	}
	for i, name := range names {
		if problem := textProblem(name, 1, mostBytes); problem != "" {
			return fmt.Sprintf("has %.64q, which %s", name, problem)
		}
		if slices.Contains(names[:i], name) || slices.Contains(taken, name) {
			return fmt.Sprintf("has %.64q twice", name)
		}
	}
	return ""
}

// listProblem is what is wrong with texts that may be there twice and may be empty.
func listProblem(list []string, most, mostBytes int) string {
	if len(list) > most {
		return fmt.Sprintf("has %d entries, the limit is %d", len(list), most)
	}
	for _, s := range list {
		problem := textProblem(s, 0, mostBytes)
		if problem == "" && strings.Contains(s, "://") { // TensorRT-LLM's endpoints
			problem = tcpProblem(s, 1, true)
		}
		if problem != "" {
			return "has one that " + problem
		}
	}
	return ""
}

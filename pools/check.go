package pools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// checkKeys refuses a record that is not one JSON object, or that has a top-level key twice. encoding/json takes
// keys in any case, so "ID" and "id" are the same key.
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
			return &InvalidError{Field: name, Problem: "is there twice"}
		}
		seen[name] = true
		var skipped json.RawMessage
		_ = dec.Decode(&skipped)
	}
	return nil
}

// The functions below say what is wrong with a value, or "" when nothing is.

func unlessEmpty(s string, problem func(string) string) string {
	if s == "" {
		return ""
	}
	return problem(s)
}

func idProblem(s string) string {
	if s == "" || len(s) > MaxIDBytes {
		return fmt.Sprintf("must be 1 to %d bytes, is %d", MaxIDBytes, len(s))
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
	return fmt.Sprintf("must be one of %s, is %q", strings.Join(named, ", "), s)
}

func countProblem(n, least, most int) string {
	if n < least || n > most {
		return fmt.Sprintf("must be %d to %d, is %d", least, most, n)
	}
	return ""
}

func addressProblem(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "must be an http or https URL"
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return fmt.Sprintf("must be an http or https URL with a host, is %q", s)
	}
	if u.User != nil || u.Path != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "must be a scheme, a host and a port, and no more"
	}
	if port := u.Port(); port != "" {
		return portProblem(port)
	}
	return ""
}

func hostPortProblem(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || strings.ContainsAny(host, " /?#@") || textProblem(s, 1, MaxModelBytes) != "" {
		return fmt.Sprintf("must be host:port, is %q", s)
	}
	return portProblem(port)
}

func portProblem(s string) string {
	if n, err := strconv.ParseUint(s, 10, 16); err != nil || n == 0 {
		return fmt.Sprintf("must have a port from 1 to 65535, has %q", s)
	}
	return ""
}

// tcpProblem looks at an endpoint of ZeroMQ's form, which has a port for each rank. bind allows the host to be any.
func tcpProblem(s string, ranks int, bind bool) string {
	rest, ok := strings.CutPrefix(s, "tcp://")
	host, port, err := net.SplitHostPort(rest)
	if !ok || err != nil || host == "" || len(s) > MaxModelBytes || textProblem(s, 1, MaxModelBytes) != "" {
		return fmt.Sprintf("must be tcp://HOST:PORT, is %q", s)
	}
	if !bind && Listens(s) {
		return fmt.Sprintf("must name a host, is %q", s)
	}
	if problem := portProblem(port); problem != "" {
		return problem
	}
	if n, _ := strconv.Atoi(port); n+ranks-1 > math.MaxUint16 {
		return fmt.Sprintf("must leave a port for each of %d ranks, is %q", ranks, s)
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
			return fmt.Sprintf("has %q, which %s", name[:min(len(name), mostBytes)], problem)
		}
		if slices.Contains(names[:i], name) || slices.Contains(taken, name) {
			return fmt.Sprintf("has %q twice", name)
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
		if problem := textProblem(s, 0, mostBytes); problem != "" {
			return fmt.Sprintf("has %q, which %s", s[:min(len(s), mostBytes)], problem)
		}
	}
	return ""
}

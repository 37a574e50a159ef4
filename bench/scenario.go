package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// scenario is a part of the run that can be measured alone.
type scenario struct {
	name, help string
	arms       []string // keys, or how keys begin
	fresh      bool     // in processes that have done nothing else
	run        func(*meter, context.Context) error
}

// The arms by how their keys begin.
var (
	everyArm  = []string{direct2Key, direct1Key, gateway2Key, againstKey, gateway1Key, nginxKey, haproxyKey, bareKey}
	flowArms  = []string{gateway2Key, againstKey, nginxKey, haproxyKey, bareKey}
	spaceArms = []string{gateway2Key, againstKey, nginxKey, haproxyKey}
)

// The keys of the arms in reports and in -arms.
const (
	direct2Key  = "direct_two_legs"
	direct1Key  = "direct_one_leg"
	gateway2Key = "gateway_two_legs"
	gateway1Key = "gateway_one_leg"
	againstKey  = "against_two_legs"
	nginxKey    = "nginx"
	haproxyKey  = "haproxy"
	bareKey     = "bare_goroutines"
)

// scenarios are the bench's measurements, in the order of -help.
func scenarios() []scenario {
	return []scenario{
		{"latency", "TTFT at rising rates", everyArm, false, (*meter).latency},
		{"short", "CPU of a short request, at a steady rate and saturated", everyArm, false, (*meter).short},
		{"chunks", "CPU of a lone chunk of paced streams", flowArms, false, (*meter).chunks},
		{"prompts", "CPU of a long prompt: new, seen before, and of a model without a tokenizer", flowArms, false, (*meter).longPrompts},
		{"memory", "memory of an open stream", append([]string{gateway1Key}, spaceArms...), true, (*meter).memory},
		{"connections", "memory of an idle keep-alive connection", spaceArms, true, (*meter).connections},
		{"soak", "memory under saturation, for as long as -soak", []string{gateway2Key, againstKey}, true, (*meter).soak},
	}
}

// pick returns the scenarios of the list; all for an empty one.
func pick(names string) ([]scenario, error) {
	all := scenarios()
	if names == "" {
		return all, nil
	}
	var picked []scenario
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(s scenario) bool { return s.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("-only: there is no scenario %q; there are %s", name, scenarioNames(all))
		}
		picked = append(picked, all[i])
	}
	return picked, nil
}

func scenarioNames(all []scenario) string {
	var names []string
	for _, s := range all {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

// begins reports whether the key begins with one of the prefixes.
func begins(key string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
}

// wants reports whether a scenario measures an arm, given those of -arms.
func (s scenario) wants(key string, chosen []string) bool {
	return begins(key, s.arms) && (len(chosen) == 0 || begins(key, chosen) || strings.HasPrefix(key, "direct"))
}

// teach writes what the command does and how to begin.
func teach(w io.Writer) {
	fmt.Fprint(w, `go run ./bench [FLAGS]: measure the gateway on the loopback address, in one run with a client that makes
its two calls itself, nginx, HAProxy, and a bare minimum in Go that forwards and relays and nothing else.

  go run ./bench                                  everything, about ten minutes
  go run ./bench -quick                           that everything works: a minute and a half
  go run ./bench -only short,chunks -rounds 3     some scenarios
  go run ./bench -only short -arms gateway_two_legs,nginx
                                                  some arms
  go run ./bench -only short -gateway NEW -against OLD
                                                  two binaries in turns, and their ratio by rounds
  go run ./bench -only chunks -against-flags --migration-limit=0
                                                  one binary with other settings, in turns
  go run ./bench -only soak -soak 10m             memory under saturation

Scenarios of -only:
`)
	for _, s := range scenarios() {
		fmt.Fprintf(w, "  %-12s %s\n", s.name, s.help)
	}
	fmt.Fprintf(w, "\nArms of -arms, by how they begin: %s. The direct arms are always there.\n\nFlags:\n",
		strings.Join(everyArm[2:], ", "))
}

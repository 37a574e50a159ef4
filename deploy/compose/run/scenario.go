package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// scenario is one way to break a fleet. Every answer must be the undisturbed one, and in time.
type scenario struct {
	name  string
	shows string
	// overlay is NAME of the scenarios/NAME.yaml that changes the fleet for it, if one does.
	overlay string
	// with is NAME of the compose.NAME.yaml that it adds, if one; of "observe" without the viewers.
	with string
	// secure adds compose.secure.yaml, with certificates and passwords of its own.
	secure bool
	// leavesKV allows KV at prefill workers until its lease ends: that whose hand-off no gateway has received or lived
	// to use, or whose release was lost between two engines.
	leavesKV bool
	// slowest is the longest that any answer may take.
	slowest time.Duration
	load    loadConfig
	// script breaks the fleet under load and sees it recover. It returns how many requests were on what it broke.
	script func(ctx context.Context, f *fleet, l *load) (hit int, err error)
}

// runAll runs the scenarios one after the other on one set of images.
func runAll(ctx context.Context, d *docker, chosen []scenario, o options, log io.Writer) (err error) {
	var raw [4]byte
	_, _ = rand.Read(raw[:]) // never fails
	id := hex.EncodeToString(raw[:])
	start := time.Now()
	var with []string
	for _, s := range chosen {
		if s.with != "" && !slices.Contains(with, s.with) {
			with = append(with, s.with)
		}
	}
	built, err := buildImages(ctx, d, "run-"+id, o.gateway, log, with...)
	if !o.keep {
		defer func() {
			after, cancel := cleanup(ctx)
			defer cancel()
			err = errors.Join(err, built.remove(after, d))
		}()
	}
	if err != nil {
		return err
	}
	failed := 0
	for _, s := range chosen {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !s.run(ctx, d, built, "tandem-"+id+"-"+s.name, o, log) {
			failed++
		}
	}
	fmt.Fprintf(log, "%d of %d scenarios passed, in %.0f s, seed %d\n", len(chosen)-failed, len(chosen), time.Since(start).Seconds(), o.seed)
	if o.keep {
		fmt.Fprintf(log, "the images are kept: docker image rm %s\n", strings.Join(built.made, " "))
	}
	if failed > 0 {
		return errFailed
	}
	return nil
}

// cleanup is a context for removing things after ctx may have ended.
func cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

// run starts a fleet, runs the scenario on it, reports and removes it.
func (s *scenario) run(ctx context.Context, d *docker, i *images, project string, o options, log io.Writer) (passed bool) {
	start := time.Now()
	overlays := []string{"books"}
	if s.overlay != "" {
		overlays = append(overlays, s.overlay)
	}
	f := newFleet(d, project, i, s.files(), overlays...)
	var outcomes []outcome
	var hit int
	err := s.secrets(f, project)
	if err == nil {
		outcomes, hit, err = s.drive(ctx, f, o.seed)
	}
	err = errors.Join(err, s.check(outcomes))
	verdict := "ok    "
	switch {
	case ctx.Err() != nil:
		verdict = "ended "
	case err != nil:
		verdict = "FAILED"
	}
	fmt.Fprintf(log, "%s %-17s %s, in %.0f s\n", verdict, s.name, figures(outcomes, hit), time.Since(start).Seconds())
	after, cancel := cleanup(ctx)
	defer cancel()
	if err != nil {
		fmt.Fprintf(log, "%s\n", indent(err.Error()))
		if ctx.Err() == nil {
			fmt.Fprintf(log, "the containers' last words:\n%s\n", indent(f.logs(after, 25)))
		}
	}
	if o.keep {
		fmt.Fprintf(log, "       kept: docker-compose -p %s down --volumes\n", project)
		return err == nil
	}
	if gone := errors.Join(f.down(after), f.removeSecrets()); gone != nil {
		fmt.Fprintf(log, "not all was removed: %v\n", gone)
		return false
	}
	return err == nil
}

// files are the names of the compose.NAME.yaml that it adds.
func (s *scenario) files() (names []string) {
	if s.with != "" {
		names = append(names, s.with)
	}
	if s.secure {
		names = append(names, "secure")
	}
	return names
}

// secrets gives a secure fleet certificates and passwords of its own.
func (s *scenario) secrets(f *fleet, project string) error {
	if !s.secure {
		return nil
	}
	return f.withSecrets(filepath.Join(os.TempDir(), project))
}

// What drive waits for.
const (
	warmAnswers = 12               // answers before anything breaks
	warmLimit   = 30 * time.Second // for those
	booksLimit  = 20 * time.Second // for everything to be released, once no client asks any more
)

// drive puts the fleet up and the load on, runs the script and waits until nothing is held.
func (s *scenario) drive(ctx context.Context, f *fleet, seed uint64) (outcomes []outcome, hit int, err error) {
	if err := f.up(ctx); err != nil {
		return nil, 0, err
	}
	cfg := s.load
	cfg.seed = seed
	l := startLoad(ctx, f.url, cfg)
	err = f.until(ctx, warmLimit, "the load is answered", func(context.Context) error {
		if n, _ := l.answered(); n < warmAnswers {
			return fmt.Errorf("%d answers", n)
		}
		return nil
	})
	if err == nil {
		hit, err = s.script(ctx, f, l)
	}
	outcomes = l.finish()
	if err != nil {
		return outcomes, hit, err
	}
	if err := f.until(ctx, healLimit, "the fleet is whole again", f.whole); err != nil {
		return outcomes, hit, err
	}
	return outcomes, hit, f.until(ctx, booksLimit, "all books are zero", func(ctx context.Context) error { return f.held(ctx, s.leavesKV) })
}

// check returns an error for wrong outcomes.
func (s *scenario) check(outcomes []outcome) error {
	var problems []error
	for _, o := range outcomes {
		if o.verdict == wentDown {
			continue
		}
		if o.verdict != right {
			problems = append(problems, fmt.Errorf("sent at %s, after %.1f s: %s: %s", o.sent.Format("15:04:05.000"), o.took.Seconds(),
				o.verdict, o.detail))
			continue
		}
		if o.took > s.slowest {
			problems = append(problems, fmt.Errorf("sent at %s: took %.1f s, more than %v", o.sent.Format("15:04:05.000"), o.took.Seconds(),
				s.slowest))
		}
	}
	const shown = 8
	if n := len(problems); n > shown {
		problems = append(problems[:shown], fmt.Errorf("and %d more", n-shown))
	}
	return errors.Join(problems...)
}

// figures are the outcomes in a line.
func figures(outcomes []outcome, hit int) string {
	kinds := map[string]int{}
	var slowest, silent time.Duration
	for _, o := range outcomes {
		if o.verdict != right {
			kind := string(o.verdict)
			if o.verdict != wrong {
				kind += " (" + o.detail + ")"
			}
			kinds[kind]++
		}
		slowest, silent = max(slowest, o.took), max(silent, o.silent)
	}
	line := fmt.Sprintf("%d requests, %d under way where it broke, ", len(outcomes), hit)
	if len(outcomes) == 0 {
		return "no request was sent"
	}
	if len(kinds) == 0 {
		line += "all right"
	}
	for i, kind := range slices.Sorted(maps.Keys(kinds)) {
		if i > 0 {
			line += ", "
		}
		line += fmt.Sprintf("%d %s", kinds[kind], kind)
	}
	return line + fmt.Sprintf(", longest silence %.1f s, slowest %.1f s", silent.Seconds(), slowest.Seconds())
}

func indent(text string) string {
	return "       " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n       ")
}

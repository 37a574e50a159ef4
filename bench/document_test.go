package main

import (
	"strings"
	"testing"
)

func TestReplaceSection(t *testing.T) {
	const before, after = "# Title\n\nby hand\n\n", "\n\nmore by hand\n"
	document := before + sectionBegin + "\nold\n" + sectionEnd + after
	got, err := replaceSection(document, "| new |\n\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := before + sectionBegin + "\n\n| new |\n\n" + sectionEnd + after; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if again, err := replaceSection(got, "| new |\n\n"); again != got || err != nil {
		t.Errorf("the same section again: got %q and %v", again, err)
	}
	for _, bad := range []string{
		"", before, sectionBegin, sectionEnd, sectionEnd + sectionBegin,
		document + sectionBegin, document + document,
	} {
		if _, err := replaceSection(bad, "x"); err == nil {
			t.Errorf("%q has no one section, and that is no error", bad)
		}
	}
}

// The document that ships can be written.
func TestTheDocumentHasItsSection(t *testing.T) {
	text, err := readDocument("../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, "## The whole") {
		t.Error("the document has lost the part that people wrote")
	}
}

func TestTables(t *testing.T) {
	p := quickPlan()
	nginx := &figures{Name: "nginx, one leg", Key: "nginx_one_leg", Baseline: "direct_one_leg", Measured: true, AtOnce: []float64{50}, CPUs: []float64{20}, Chunks: []float64{10}}
	gateway := &figures{Name: "gateway, one leg", Key: "gateway_one_leg", Baseline: "direct_one_leg", Measured: true, AtOnce: []float64{125}, CPUs: []float64{60}, Chunks: []float64{15}}
	direct := &figures{Name: "direct, one leg", Key: "direct_one_leg"}
	for _, rate := range p.Rates {
		*direct.step(rate.PerSecond) = step{PerSecond: rate.PerSecond, P50s: []float64{100}, P99s: []float64{200}}
		*nginx.step(rate.PerSecond) = step{PerSecond: rate.PerSecond, P50s: []float64{200}, P99s: []float64{500}, CPUs: []float64{70}}
		*gateway.step(rate.PerSecond) = step{PerSecond: rate.PerSecond, P50s: []float64{450}, P99s: []float64{900}, CPUs: []float64{140}}
	}
	r := &report{Plan: p, Arms: []*figures{direct, gateway, nginx}}
	r.finish()
	text := r.tables()
	for _, want := range []string{
		"| 500 | gateway, one leg | 0.450 (0.450–0.450) | 0.900 (0.900–0.900) | 0.350 (0.350–0.350) | 0.700 (0.700–0.700) |",
		"| 500 | direct, one leg | 0.100 (0.100–0.100) | 0.200 (0.200–0.200) |  |  |",
		"| gateway, one leg | 2.5× | 3.0× | 1.5× | 3.5× | 3.5× | 3.5× |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no line %s in\n%s", want, text)
		}
	}
	r.Arms = r.Arms[:2]
	if text := r.tables(); strings.Contains(text, "Compared with nginx") || !strings.Contains(text, "nginx was absent") {
		t.Errorf("without nginx:\n%s", text)
	}
}

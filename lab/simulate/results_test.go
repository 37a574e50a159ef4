package simulate

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const resultsPage = "../../docs/results.md"

// resultsHead begins the table of docs/results.md that compares mode auto.
const resultsHead = "\n| recipe: arm | "

// noise is the share by which a figure may be worse without being reported so.
const noise = .01

// marginCell is a figure of an arm in mode auto, and how it differs from that of kv and, where that is another, of the
// best arm.
func marginCell(kv, best *Margin, decimals int) string {
	if best == nil {
		return "–"
	}
	cell := strings.TrimPrefix(fmt.Sprintf("%.*f", decimals, best.Own.Mean), "0")
	against := func(m *Margin) string {
		if ratio := m.Own.Mean / m.Other.Mean; ratio > 2 {
			return fmt.Sprintf("%.1f times as much", ratio)
		}
		return m.mark()
	}
	if kv != nil {
		cell += ", " + against(kv)
		if kv.Against == best.Against {
			return cell
		}
	}
	var other []string // without what both names have
	for word := range strings.FieldsSeq(best.Against) {
		if !slices.Contains(strings.Fields(best.Arm), word) {
			other = append(other, word)
		}
	}
	return cell + "; " + against(best) + " " + strings.Join(other, " ")
}

// resultRows are those of a recipe's results.
func resultRows(t *testing.T, file string) (rows []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var found struct {
		Arms []struct {
			Name, Mode string
			Seeds      []uint64
			Spread     Stats
		}
	}
	require.NoError(t, json.Unmarshal(text, &found), "%s", file)
	recipe := strings.TrimSuffix(filepath.Base(file), ".json")
	plan, err := ParsePlan(recipe+".yaml", []byte(readRecipe(t, recipe)))
	require.NoError(t, err)
	r := &Report{Capacity: plan.Plan.Capacity}
	for _, a := range found.Arms {
		i := slices.IndexFunc(plan.Variants, func(v *Variant) bool { return v.Name() == a.Name })
		require.GreaterOrEqual(t, i, 0, "%s has no arm %s: it is of another plan", file, a.Name)
		r.Arms = append(r.Arms, ArmReport{Name: a.Name, Mode: a.Mode, Seeds: a.Seeds, Stats: a.Spread, under: plan.Variants[i].under()})
	}
	all := r.Margins()
	for _, a := range r.Arms {
		kv, best := map[string]*Margin{}, map[string]*Margin{}
		for i := range all {
			if m := &all[i]; m.Arm == a.Name && m.Best {
				best[m.Metric] = m
			} else if m.Arm == a.Name {
				kv[m.Metric] = m
			}
		}
		if best["goodput"] == nil || len(a.Seeds) < 4 {
			continue
		}
		mean, p99 := kv["ttft_s.mean"], kv["ttft_s.p99"]
		rows = append(rows, fmt.Sprintf("| %s: %s | %s | %s | %s |",
			recipe, a.Name, marginCell(kv["goodput"], best["goodput"], 3), marginCell(mean, mean, 2), marginCell(p99, p99, 1)))
	}
	return rows
}

// TestResultsTable: docs/results.md has each recipe, as a rule in the table that compares mode auto; -update writes its
// rows from bench/recipes/results, which `make recipes` writes, and keeps those of recipes that have none.
func TestResultsTable(t *testing.T) {
	text, err := os.ReadFile(resultsPage)
	require.NoError(t, err)
	before, table, ok := strings.Cut(string(text), resultsHead)
	table, after, ended := strings.Cut(table, "\n\n")
	require.True(t, ok && ended, "%s has no such table", resultsPage)
	lines := strings.Split(table, "\n")
	head, rows := lines[:2], lines[2:]
	recipes, err := filepath.Glob("../../bench/recipes/*.yaml")
	require.NoError(t, err)
	var all []string
	for _, recipe := range recipes {
		name := strings.TrimSuffix(filepath.Base(recipe), ".yaml")
		var own []string
		for _, row := range rows {
			if strings.HasPrefix(row, "| "+name+": ") {
				own = append(own, row)
			}
		}
		if results := filepath.Join("../../bench/recipes/results", name+".json"); *update {
			if file, err := os.Stat(results); err == nil && file.Size() > 0 {
				own = resultRows(t, results)
			}
		}
		if len(own) == 0 && !strings.Contains(string(text), name+".yaml") {
			t.Errorf("%s has no row of recipe %s and does not mention it: make recipes, and go test ./lab/simulate -run TestResultsTable -update", resultsPage, name)
		}
		all = append(all, own...)
	}
	written := before + resultsHead + strings.Join(append(head, all...), "\n") + "\n\n" + after
	if *update {
		require.NoError(t, os.WriteFile(resultsPage, []byte(written), 0o644))
	} else if written != string(text) {
		t.Errorf("%s has rows of no recipe, or not in their order", resultsPage)
	}
}

// mark is the margin as a change of the figure, with what it means.
func (m *Margin) mark() string {
	text := change(m.Own.Mean/m.Other.Mean, 1)
	if !m.Sure {
		text = "~" + text
	}
	if m.Better < -noise {
		text += " worse"
	}
	return text
}

package speed

import (
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// measured is work that an engine did on real hardware.
type measured struct {
	a, b    int
	seconds float64
}

// h200 returns the prompts and tokens that vLLM was measured with alone on one H200.
func h200(t *testing.T) (prompts, tokens []measured) {
	t.Helper()
	text, err := os.ReadFile("../../bench/recipes/h200.jsonl")
	require.NoError(t, err)
	probe, _, _ := strings.Cut(string(text), "\n")
	var all map[string]any
	require.NoError(t, json.Unmarshal([]byte(probe), &all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		var m measured
		if n, _ := fmt.Sscanf(key, "ttft_ms_%dcached+%d", &m.b, &m.a); n < 2 {
			m.b = 0
			if n, _ := fmt.Sscanf(key, "ttft_ms_%d", &m.a); n < 1 {
				if n, _ := fmt.Sscanf(key, "itl_ms_b%d", &m.a); n == 1 {
					m.seconds = all[key].(float64) / 1000
					tokens = append(tokens, m)
				}
				continue
			}
		}
		for _, ms := range all[key].([]any) {
			m.seconds = ms.(float64) / 1000
			prompts = append(prompts, m)
		}
	}
	return prompts, tokens
}

// splitwise returns what Splitwise's authors measured of models on GPUs, prompts and tokens of batches, by name.
func splitwise(t *testing.T) (prompts, tokens map[string][]measured) {
	t.Helper()
	file, err := os.Open("../../../shared/data/latency_data/splitwise_perf_model.csv.gz")
	if err != nil {
		t.Logf("without Splitwise's measurements: %v", err)
		return nil, nil
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	require.NoError(t, err)
	rows, err := csv.NewReader(plain).ReadAll()
	require.NoError(t, err)
	prompts, tokens = map[string][]measured{}, map[string][]measured{}
	for _, row := range rows[1:] {
		number := func(column string) float64 {
			v, err := strconv.ParseFloat(row[slices.Index(rows[0], column)], 64)
			require.NoError(t, err)
			return v
		}
		name := row[0] + " " + row[1] + " " + row[slices.Index(rows[0], "tensor_parallel")]
		prompt, batch := int(number("prompt_size")), int(number("batch_size"))
		if batch == 1 {
			prompts[name] = append(prompts[name], measured{prompt, 0, number("prompt_time") / 1000})
		}
		context := batch * (prompt + int(number("token_size"))/2)
		tokens[name] = append(tokens[name], measured{batch, context, number("token_time") / 1000})
	}
	return prompts, tokens
}

// distance is how far a prediction is off, as a logarithm.
func distance(predicted, seconds float64) float64 { return math.Abs(math.Log(predicted / seconds)) }

// learns plays all measured work in random orders, and returns the mean distance of the predictions that were made
// before each: for the second to the 16th, and for the rest. The others are those of a rate, as it was before.
func learns(work Work, all []measured) (early, late, rateEarly, rateLate float64) {
	const orders = 40
	var n, m float64
	for order := range uint64(orders) {
		rng := rand.New(rand.NewPCG(order, 0))
		f, now := NewFits(work), time.Unix(1000, 0)
		var units, seconds float64
		for i, at := range rng.Perm(len(all)) {
			one := all[at]
			now = now.Add(3 * time.Second)
			if d, ok := f.Predict(kind, "w", 0, one.a, one.b); ok {
				own, rate := distance(d.Seconds(), one.seconds), distance(float64(one.a)*seconds/units, one.seconds)
				if i < 16 {
					early, rateEarly, n = early+own, rateEarly+rate, n+1
				} else {
					late, rateLate, m = late+own, rateLate+rate, m+1
				}
			}
			f.Observe(kind, "w", "i", one.a, one.b, time.Duration(one.seconds*float64(time.Second)), now)
			units, seconds = units*.9+float64(one.a), seconds*.9+one.seconds
		}
	}
	return early / n, late / max(1, m), rateEarly / n, rateLate / max(1, m)
}

// The speed of real engines is predicted from the first answers on, and better than by a rate in tokens a second.
func TestRealEnginesArePredicted(t *testing.T) {
	prompts, tokens := h200(t)
	require.Len(t, prompts, 24)
	require.Len(t, tokens, 4)
	check := func(name string, work Work, all []measured, mostEarly, mostLate, share float64) {
		early, late, rateEarly, rateLate := learns(work, all)
		t.Logf("%s: off by %.2f × for the first 16, then by %.2f ×; by a rate %.2f × and %.2f ×", name,
			math.Exp(early), math.Exp(late), math.Exp(rateEarly), math.Exp(rateLate))
		assert.LessOrEqual(t, math.Exp(early), mostEarly, "%s: early", name)
		assert.LessOrEqual(t, math.Exp(late), mostLate, "%s: late", name)
		assert.LessOrEqual(t, early, share*rateEarly, "%s: against a rate, early", name)
	}
	check("prompts on an H200", Prompt(), prompts, 1.4, 1.2, .7)
	check("tokens on an H200", Token(), tokens, 1.3, 1.3, 1)
	more, moreTokens := splitwise(t)
	for _, name := range slices.Sorted(maps.Keys(more)) {
		check("prompts, "+name, Prompt(), more[name], 1.4, 1.2, 1)
		check("tokens, "+name, Token(), moreTokens[name], 1.4, 1.2, 1)
	}
}

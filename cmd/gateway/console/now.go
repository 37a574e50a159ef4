package console

import (
	"net/url"
	"slices"
	"strings"
	"time"
)

// modelNow is one model's latest figures, and those of the last quarter of an hour.
type modelNow struct {
	model
	figures
}

// nowData returns the figures of every model, including models without a worker.
func (c *Console) nowData(url.Values) (any, string) {
	s := c.look(time.Now(), false)
	var all []modelNow
	r := c.recorder
	r.mu.Lock()
	for name, m := range r.models {
		n := modelNow{model: model{Name: name}, figures: m.quarter()}
		if i := slices.IndexFunc(s.Models, func(m model) bool { return m.Name == name }); i >= 0 {
			n.model = s.Models[i]
		}
		all = append(all, n)
	}
	r.mu.Unlock()
	slices.SortFunc(all, func(a, b modelNow) int { return strings.Compare(a.Name, b.Name) })
	return struct {
		Models   []modelNow
		Gateways []gateway
	}{all, s.Gateways}, s.revisions()["now"]
}

// Of returns a figure of the last quarter of an hour.
func (m *modelNow) Of(field string) string {
	f := &m.figures
	switch field {
	case "ttft50":
		return short(f.ttft.quantile(.5))
	case "ttft99":
		return short(f.ttft.quantile(.99))
	case "itl50":
		return short(f.gaps.Quantile(.5))
	case "itl99":
		return short(f.gaps.Quantile(.99))
	case "requests":
		return count(f.ended)
	case "tokens":
		return count(int(f.tokens))
	case "refused":
		return count(f.refused)
	case "failed":
		return count(f.failed)
	case "left":
		return count(f.left)
	case "hits":
		return percent(f.hitRate())
	case "predicted":
		return percent(f.predictedRate())
	}
	return "–"
}

package replica

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestQuery: an operator's question reaches every other gateway once. One whose answer is too long, and one that does not
// answer at all, cost the answers of the rest nothing but the limit of time.
func TestQuery(t *testing.T) {
	inGroup(t, func(t *testing.T, join func(string) *gateway) {
		asked := map[string]int{}
		a, b, c, d := join("a"), join("b"), join("c"), join("d")
		for g, answer := range map[*gateway][]byte{a: []byte("own"), b: []byte("of b"), c: bytes.Repeat([]byte("x"), MaxAnswer+1)} {
			g.member.rooms.Answer = func(question string) []byte {
				asked[g.member.Name()+" "+question]++
				return answer
			}
		}
		d.member.rooms.Answer = nil
		a.eventually("a knows the others", func() bool { return len(a.member.Peers()) == 3 })
		began := time.Now()
		got := a.member.Query(t.Context(), "/events?since=10m")
		require.Len(t, got, 3)
		assert.Equal(t, queryTime, time.Since(began), "a silent gateway is waited for")
		assert.True(t, got[0].Gateway == "b" && string(got[0].Body) == "of b" && got[0].Err == nil, "%+v", got[0])
		assert.True(t, got[1].Gateway == "c" && got[1].Body == nil && got[1].Err == errAnswer, "%v", got[1].Err)
		assert.True(t, got[2].Gateway == "d" && got[2].Body == nil && got[2].Err != nil, "%v", got[2].Err)
		assert.Equal(t, map[string]int{"b /events?since=10m": 1, "c /events?since=10m": 1}, asked)

		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for _, answer := range a.member.Query(gone, "?") {
			assert.Error(t, answer.Err, "an operator who has left is waited for")
		}
		assert.Empty(t, a.member.Query(t.Context(), string(make([]byte, maxQuestion+1)))[0].Body, "a long question is answered")
		var alone *Member
		assert.Empty(t, alone.Query(t.Context(), "?"))
	})
}

package conformance

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// target is a gateway in front of the engine that is also called alone, or of a pair of its kind.
type target struct{ name, url string }

// conform sends each row of the table to an engine alone and to the targets, whole and streamed, and reports differences
// that are not known. It returns the engine's own answers, and how many differences known_test.go does not list. Both are written
// to the test's artifacts.
func conform(t *testing.T, client *http.Client, kind, alone string, rows []row, targets []target) (rec recording, unexplained int) {
	out, err := os.Create(filepath.Join(t.ArtifactDir(), kind+".differences"))
	require.NoError(t, err)
	defer func() { _ = out.Close() }()
	answers, err := os.Create(filepath.Join(t.ArtifactDir(), kind+".answers"))
	require.NoError(t, err)
	defer func() { _ = answers.Close() }()
	rec = recording{Rows: map[string][]int{}}
	requests, explained := 0, map[int]int{}
	for _, r := range rows {
		for _, streamed := range []bool{false, true} {
			if streamed && !strings.HasPrefix(r.body, `{"`) {
				continue
			}
			name := r.name
			if streamed {
				name += ", streamed"
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			want, err := send(ctx, client, alone, r, streamed)
			require.NoError(t, err, name)
			for try := 0; try < 3 && streamed && want.Status == http.StatusOK && len(want.Events) < 5; try++ {
				// Tokens that came together make one event: which events there can be is seen in another answer.
				more, err := send(ctx, client, alone, r, streamed)
				require.NoError(t, err, name)
				if len(more.Events) > len(want.Events) {
					want = more
				}
			}
			rec.add(r.name, want.shape())
			_, _ = fmt.Fprintf(answers, "%s\t%s\n", name, line(want.merged()))
			for _, to := range targets {
				got, err := send(ctx, client, to.url, r, streamed)
				requests++
				different := want.differences(got)
				if err != nil {
					different = []string{": " + err.Error()}
				}
				for _, d := range different {
					why := explain(kind, to.name, name, d)
					if why >= 0 {
						explained[why]++
					} else {
						unexplained++
						t.Errorf("%s: %s%s", to.name, name, d)
					}
					_, _ = fmt.Fprintf(out, "%d\t%s\t%s\t%s\n", why, to.name, name, d)
				}
			}
			cancel()
		}
	}
	t.Logf("%s: %d requests compared, differences by their place in the list of known ones: %v", kind, requests, explained)
	return rec, unexplained
}

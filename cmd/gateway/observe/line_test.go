package observe

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Thousandths are written as package strconv writes them.
func TestThousandths(t *testing.T) {
	check := func(x float64) (short bool) {
		got, short := appendThousandths(nil, x)
		want := strconv.FormatFloat(x, 'g', -1, 64)
		require.True(t, !short || string(got) == want, "%s, want %s", got, want)
		return short
	}
	for n := 1; n < 1e9; n += 1 + n/5000 {
		x := float64(n) / 1000
		require.True(t, check(x), "%v takes the long way", x)
		check(math.Nextafter(float64(n)/1000, 0))
		check(math.Nextafter(float64(n)/1000, 1e9))
	}
	for _, x := range []float64{0, math.Copysign(0, -1), -1, 0.0005, 0.0009999, 1e6, 1e300, math.Inf(1), math.NaN()} {
		assert.False(t, check(x), "%v takes the short way", x)
	}
}

// A line is, byte for byte, what slog writes of the same fields, to our own handlers and to others.
func FuzzLine(f *testing.F) {
	f.Add("a", "r\"s =\\t", 7, true, 1.5, math.Inf(1), int64(1e18), 3600)
	f.Add("", "\u2028 é \x80\x7f\x00<&>", -1, false, 1e-7, math.NaN(), int64(1700000000_120000000), -5400)
	f.Add("é=", "世界", math.MaxInt, false, 1e21, math.Copysign(0, -1), int64(1700000000_000000000), 0)
	f.Add("\b\f\n\r\x00\xef\xbf", "\xef\xbf\xbd", 1, true, 0.1, 1e20, int64(0), 60)
	f.Add("\t", "a\u00a0b\ufffd", 0, false, 5e-324, 123456789.125, int64(-1), 1)
	f.Fuzz(func(t *testing.T, one, two string, n int, yes bool, x, y float64, nanos int64, zone int) {
		at := time.Unix(0, nanos).In(time.FixedZone("z", zone%86400/60*60))
		for _, format := range []string{"logfmt", "json"} {
			for _, level := range []slog.Level{slog.LevelInfo, slog.LevelWarn} {
				var want, got, other bytes.Buffer
				log, err := NewLogger(&want, Logging{"info", format})
				require.NoError(t, err)
				record := slog.NewRecord(at, level, two, 0)
				record.AddAttrs(slog.String("one", one), slog.Int("n", n), slog.Any("in", slog.GroupValue(
					slog.Float64("x", x), slog.String("two", two), slog.Bool("yes", yes))), slog.Float64("y", y),
					slog.Any("last", slog.GroupValue(slog.Int("n", n))))
				require.NoError(t, log.Handler().Handle(context.Background(), record))
				own, _ := NewLogger(&got, Logging{"info", format})
				foreign, _ := NewLogger(&other, Logging{"info", format})
				for range 2 { // the second one's buffer was used before
					got.Reset()
					other.Reset()
					for _, log := range []*slog.Logger{own, slog.New(foreign.Handler().(*handler).Handler)} {
						l := NewLine(log, level, at, two)
						l.String("one", one)
						l.Int("n", n)
						l.Open("in")
						l.Float("x", x)
						l.String("two", two)
						l.Bool("yes", yes)
						l.Close()
						l.Float("y", y)
						l.Open("last")
						l.Int("n", n)
						l.Close()
						l.End()
					}
				}
				assert.True(t, got.String() == want.String() && other.String() == want.String(),
					"%s: got\n%s%swant\n%s", format, &got, &other, &want)
			}
		}
	})
}

package replica

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkVisible is how long a booking takes until another gateway counts it, over NATS, with three of them.
func BenchmarkVisible(b *testing.B) {
	server := startNATS(b, 0)
	from, to, _ := join(b, server.URL(), "a"), join(b, server.URL(), "b"), join(b, server.URL(), "c")
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		l := from.book()
		for to.requests() == 0 {
			<-time.After(10 * time.Microsecond)
		}
		took = append(took, time.Since(began))
		l.Release(time.Now())
		for to.requests() > 0 {
			<-time.After(10 * time.Microsecond)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50_µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99_µs")
}

// BenchmarkCPU is what sharing costs a request and gateway, with three gateways and their NATS in one process: bookings at a steady
// rate with it, less the same without it.
func BenchmarkCPU(b *testing.B) {
	for _, rate := range []int{1000, 3000} {
		b.Run(fmt.Sprintf("rate=%d", rate), func(b *testing.B) {
			server := startNATS(b, 0)
			gateways := []*gateway{join(b, server.URL(), "a"), join(b, server.URL(), "b"), join(b, server.URL(), "c")}
			alone := drive(b, gateways[:1], rate, true)
			together := drive(b, gateways, rate, false)
			for b.Loop() { // each run takes as long as it takes
			}
			b.ReportMetric(float64((together-alone).Microseconds())/float64(len(gateways)), "cpu_µs/request")
		})
	}
}

// drive books and releases for two seconds, and returns the processor time that a request took.
func drive(b *testing.B, gateways []*gateway, rate int, off bool) time.Duration {
	if off {
		m := gateways[0].member
		gateways[0].member = nil
		defer func() { gateways[0].member = m }()
	}
	before := cpu(b)
	began := time.Now()
	n := 2 * rate
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	var held []func()
	for done := 0; done < n; {
		<-ticks.C
		for due := min(n, int(time.Since(began).Seconds()*float64(rate))); done < due; done++ {
			l := gateways[done%len(gateways)].book()
			held = append(held, func() { l.PrefillDone(time.Now()) }, func() { l.Release(time.Now()) })
			for len(held) > 100 {
				held[0]()
				held = held[1:]
			}
		}
	}
	for _, end := range held {
		end()
	}
	return (cpu(b) - before) / time.Duration(n)
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

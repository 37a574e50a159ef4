package main

import (
	"context"
	"fmt"
	"time"
)

// endless is how many chunks an answer has that is cut before it ends.
const endless = 50_000

// chunks is the CPU time of a chunk that travels alone: streams are open before
// the measurement begins and none ends within it.
func (m *meter) chunks(ctx context.Context) error {
	m.fleet.setPace(m.ChunkPace)
	defer m.fleet.setPace(m.Pace)
	for round := range m.Rounds {
		for i, streams := range m.PacedStreams {
			for _, a := range turns(m.measured(), round+i) {
				m.step("round %d of %d: %s, %d streams of a chunk every %v", round+1, m.Rounds, a.name, streams, m.ChunkPace)
				if err := m.chunksOf(ctx, a, streams); err != nil {
					return m.explain(a, err)
				}
			}
		}
	}
	return nil
}

// chunksOf measures one arm with so many streams.
func (m *meter) chunksOf(ctx context.Context, a *arm, streams int) error {
	opened := m.written()
	end, err := m.hold(ctx, a, streams, m.ChunkPace/10)
	if err != nil {
		return err
	}
	defer func() {
		end()
		m.drained(ctx)
	}()
	// All are open when each has had a chunk, and a few later none is early.
	for deadline := time.Now().Add(patience); m.written() < opened+int64(5*streams); {
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %d streams did not open", errLost, streams)
		}
	}
	before := m.written()
	u, took, err := m.watch(a, func() error { return wait(ctx, m.ChunksFor) })
	if err != nil {
		return err
	}
	n := m.written() - before
	f, name := m.report.arm(a), at("chunk", m.chunksPerSecond(streams))
	f.cost(name, u, int(n))
	f.add(name+"_per_second", float64(n)/took.Seconds())
	return nil
}

// drained waits until engines have noticed that streams were cut.
func (m *meter) drained(ctx context.Context) {
	for {
		was := m.written()
		if wait(ctx, 2*m.ChunkPace) != nil || m.written() == was {
			return
		}
	}
}

// written is how many chunks all engines wrote since they began.
func (m *meter) written() int64 {
	var n int64
	for _, e := range m.fleet.engines() {
		n += e.Chunks()
	}
	return n
}

// hold opens streams one after another and keeps them until end is called, which cuts them. The arm gets another
// client then.
func (m *meter) hold(ctx context.Context, a *arm, streams int, apart time.Duration) (end func(), err error) {
	jobs := m.prompts.short(a, streams, endless)
	for i := range jobs {
		jobs[i].due = time.Duration(i) * apart
	}
	watching, stop := context.WithCancel(ctx)
	over := make(chan error, 1)
	go func() { over <- a.client.open(watching, jobs) }()
	end = func() {
		stop()
		<-over
		a.client.close()
		a.client = &client{front: a.front, back: a.back}
	}
	for deadline := time.Now().Add(jobs[len(jobs)-1].due + patience); a.open() < streams && err == nil; {
		if err = wait(ctx, 10*time.Millisecond); err == nil && time.Now().After(deadline) {
			err = fmt.Errorf("%w: %d of %d streams opened", errLost, a.open(), streams)
		}
	}
	if err != nil {
		end()
	}
	return end, err
}

// open is how many streams of an arm are under way.
func (a *arm) open() int {
	n := 0
	for _, l := range a.client.lanes() {
		if j := l.job.Load(); j != nil && j.chunks == endless {
			n++
		}
	}
	return n
}

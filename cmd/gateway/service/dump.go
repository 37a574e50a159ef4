package service

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/tandem-pd/tandem/router/index"
)

// A dump is lines of JSON: a heading, what there is, and an end that counts the
// lines before it, so that one that was cut short is known for that.

// dumpVersion is raised when an older service could not read a dump.
const dumpVersion = 1

// maxDumpLine bounds one line, in bytes.
const maxDumpLine = 32 << 20

// blocksALine is how many blocks of the index a line has at most.
const blocksALine = 2048

// line is one line of a dump: exactly one of its fields is set.
type line struct {
	Heading     *heading         `json:"dump,omitempty"`
	Worker      json.RawMessage  `json:"worker,omitempty"`
	Blocks      *blocksLine      `json:"blocks,omitempty"`
	Events      *eventsLine      `json:"events,omitempty"`
	Reservation *reservationLine `json:"reservation,omitempty"`
	End         *ending          `json:"end,omitempty"`
}

type heading struct {
	Service string `json:"service"`
	Version int    `json:"version"`
}

type ending struct {
	Lines int `json:"lines"`
}

// blocksLine is some of what a worker's rank holds on one tier.
type blocksLine struct {
	Worker string     `json:"worker"`
	Rank   int        `json:"rank"`
	Tier   index.Tier `json:"tier"`
	// Blocks are triples: sequence hash, that of the block before it, and 0 where
	// the block begins a prompt, 1 where it follows, 2 where that is not known.
	Blocks [][3]uint64 `json:"blocks"`
}

// dumpWriter writes lines, and remembers the first error.
type dumpWriter struct {
	out   *bufio.Writer
	lines int
	err   error
}

// dump answers with a dump of the named service that fill writes.
func dump(w http.ResponseWriter, service string, fill func(d *dumpWriter)) int {
	w.Header().Set("Content-Type", "application/x-ndjson")
	d := &dumpWriter{out: bufio.NewWriterSize(w, 64<<10)}
	d.add(line{Heading: &heading{service, dumpVersion}})
	fill(d)
	d.add(line{End: &ending{d.lines}})
	if d.err == nil {
		_ = d.out.Flush() // fails only when the client has left
	}
	return http.StatusOK
}

// add writes a line; after an error it does nothing.
func (d *dumpWriter) add(l line) {
	if d.err != nil {
		return
	}
	raw, err := json.Marshal(l)
	if err == nil {
		_, err = d.out.Write(append(raw, '\n'))
	}
	d.lines++
	d.err = err
}

// worker adds a worker's record.
func (d *dumpWriter) worker(record any) {
	raw, err := json.Marshal(record)
	if err != nil {
		d.err = err
		return
	}
	d.add(line{Worker: raw})
}

// blocks adds what a worker's rank holds in an index, on every tier.
func (d *dumpWriter) blocks(x *index.Index, worker string, rank int) {
	o, known := x.Lookup(worker, rank)
	if !known {
		return
	}
	for t := index.Device; t <= index.Shared; t++ {
		part := blocksLine{Worker: worker, Rank: rank, Tier: t}
		flush := func() {
			if len(part.Blocks) > 0 {
				d.add(line{Blocks: &part})
				part.Blocks = part.Blocks[:0]
			}
		}
		x.Each(o, t, func(b index.Block) bool {
			kind := uint64(2)
			switch {
			case b.First:
				kind = 0
			case b.Follows:
				kind = 1
			}
			if part.Blocks = append(part.Blocks, [3]uint64{b.Hash, b.Parent, kind}); len(part.Blocks) == blocksALine {
				flush()
			}
			return d.err == nil
		})
		flush()
	}
}

// store puts the blocks of a line into an index, of a worker's rank that it knows.
func (l *blocksLine) store(x *index.Index) error {
	o, known := x.Lookup(l.Worker, l.Rank)
	if !known || l.Tier > index.Shared {
		return fmt.Errorf("blocks of an unknown rank or tier: worker %.80q, rank %d, tier %d", l.Worker, l.Rank, l.Tier)
	}
	for _, b := range l.Blocks {
		one := b[:1]
		switch b[2] {
		case 0:
			x.Store(o, l.Tier, one)
		case 1:
			x.Extend(o, l.Tier, b[1], one)
		default:
			x.Place(o, l.Tier, one)
		}
	}
	return nil
}

// dumpReader reads a dump.
type dumpReader struct {
	in    *bufio.Scanner
	lines int
}

// readDump begins to read a dump of the named service.
func readDump(in io.Reader, service string) (*dumpReader, error) {
	r := &dumpReader{in: bufio.NewScanner(in)}
	r.in.Buffer(make([]byte, 0, 64<<10), maxDumpLine)
	l, err := r.next()
	switch {
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	case l.Heading == nil || l.Heading.Service != service:
		return nil, fmt.Errorf("it is no dump of gateway %s", service)
	case l.Heading.Version != dumpVersion:
		return nil, fmt.Errorf("it is a dump of version %d, this service reads %d", l.Heading.Version, dumpVersion)
	}
	return r, nil
}

// next returns the next line; io.EOF behind the last of a whole dump, and
// io.ErrUnexpectedEOF of one that was cut short.
func (r *dumpReader) next() (line, error) {
	var l line
	if !r.in.Scan() {
		if err := r.in.Err(); err != nil {
			return l, err
		}
		return l, io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(r.in.Bytes(), &l); err != nil {
		return l, fmt.Errorf("line %d is no line of a dump", r.lines+1)
	}
	if l.End != nil {
		if l.End.Lines != r.lines {
			return l, fmt.Errorf("the dump has %d lines and says %d", r.lines, l.End.Lines)
		}
		return l, io.EOF
	}
	r.lines++
	return l, nil
}

// restoreAll restores from the first sibling that has answered, and then calls the service ready. What came of a dump
// that broke off stays: it was true when it was sent, and the next sibling's comes on top.
func (s *Server) restoreAll(ctx context.Context) {
	for _, base := range s.cfg.RestoreFrom {
		lines, err := s.restoreFrom(ctx, base)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			s.restored.WithLabelValues("restored").Inc()
			s.log.Info("restored from a sibling", "sibling", redacted(base), "lines", lines)
			break
		}
		s.restored.WithLabelValues("failed").Inc()
		s.log.Warn("sibling skipped: nothing to restore from it", "sibling", redacted(base), "error", err)
	}
	s.ready.Store(true)
}

func (s *Server) restoreFrom(ctx context.Context, base string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RestoreTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(base, "/")+"/dump", nil)
	if err != nil {
		return 0, errors.New("its URL cannot be used")
	}
	if s.cfg.RestoreToken != "" {
		req.Header.Set("Authorization", "Bearer "+s.cfg.RestoreToken)
	}
	res, err := s.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the address is named already
		}
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("it answered %d", res.StatusCode)
	}
	r, err := readDump(res.Body, s.backend.name())
	if err != nil {
		return 0, err
	}
	if err := s.backend.restore(ctx, r); err != nil {
		return 0, err
	}
	return r.lines, nil
}

// redacted is a URL without its password.
func redacted(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return "a URL that cannot be read"
	}
	return u.Redacted()
}

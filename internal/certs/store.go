package certs

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/internal/setting"
)

// Every is how often files are read again by default.
const Every = 10 * time.Second

// Store holds sources and reads their files again. Its methods may be called concurrently, and on nil, which holds
// none.
type Store struct {
	log   *slog.Logger
	every time.Duration

	mu      sync.Mutex // guards all below, and failed of each source
	sources []*Source
	reloads *prometheus.CounterVec
}

// NewStore returns a store without sources. every of 0 is [Every].
func NewStore(every time.Duration, log *slog.Logger) *Store {
	if every <= 0 {
		every = Every
	}
	return &Store{log: log, every: every, reloads: metrics.In(nil).Counter("tls_reloads_total", "", "use", "result")}
}

// Open reads files and keeps them up to date. Equal files share one source. Its error is a [*setting.Error]: an
// unreadable file, a key that does not match, a certificate not in force.
func (s *Store) Open(f Files) (*Source, error) {
	switch {
	case f.Cert.Path != "" && f.Key.Path == "":
		return nil, setting.Errorf(f.Key.Setting, "it is missing: %s needs its private key", f.Cert.Setting)
	case f.Key.Path != "" && f.Cert.Path == "":
		return nil, setting.Errorf(f.Cert.Setting, "it is missing: %s is the key of a certificate", f.Key.Setting)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, open := range s.sources {
		if open.files == f {
			return open, nil
		}
	}
	source := &Source{files: f}
	c, err := f.read()
	if err != nil {
		return nil, err
	}
	m, err := f.parse(&c, time.Now())
	if err != nil {
		return nil, err
	}
	source.now.Store(m)
	if f.Given() {
		s.sources = append(s.sources, source)
		s.show(source)
	}
	return source, nil
}

// Keep writes a source's certificate and key to one file, and again whenever they change: for servers that read the
// file at each handshake. Each write replaces the whole file.
func (s *Store) Keep(source *Source, path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := replace(path, source.now.Load().pem); err != nil {
		return err
	}
	source.copies = append(source.copies, path)
	return nil
}

// replace atomically replaces a file.
func replace(path string, text []byte) error {
	next := path + ".next"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// Run reads the files again from time to time until ctx ends, when it returns nil.
func (s *Store) Run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			_ = s.Reload() // the log has it
		}
	}
}

// Reload reads every file again, now. Its error is of those that cannot be used, as [*setting.Error]s; their sources
// stay as they were.
func (s *Store) Reload() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, source := range s.sources {
		errs = append(errs, s.reload(source, time.Now()))
	}
	return errors.Join(errs...)
}

// reload reads one source's files again. The caller holds mu.
func (s *Store) reload(source *Source, now time.Time) error {
	c, err := source.files.read()
	if err == nil && c.digest() == source.now.Load().digest {
		source.failed = ""
		return nil
	}
	var m *material
	if err == nil {
		m, err = source.files.parse(&c, now)
	}
	for _, path := range source.copies {
		if err == nil {
			err = replace(path, m.pem)
		}
	}
	if err != nil {
		if text := err.Error(); text != source.failed { // else the log has it
			source.failed = text
			s.reloads.WithLabelValues(source.files.Use, "failed").Inc()
			s.log.Error("certificate files cannot be used; keeping those read before", "use", source.files.Use, "error", err)
		}
		return err
	}
	source.failed = ""
	source.now.Store(m)
	s.reloads.WithLabelValues(source.files.Use, "ok").Inc()
	attrs := []any{"use", source.files.Use}
	if m.pair != nil {
		attrs = append(attrs, "serial", m.pair.Leaf.SerialNumber.String(), "expires", m.pair.Leaf.NotAfter)
	}
	s.log.Info("certificate files reloaded", attrs...)
	return nil
}

// show creates the counter's series of a source. The caller holds mu.
func (s *Store) show(source *Source) {
	for _, result := range []string{"ok", "failed"} {
		s.reloads.WithLabelValues(source.files.Use, result)
	}
}

// Ends returns when each certificate in force ends, by its use.
func (s *Store) Ends() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]time.Time{}
	for _, source := range s.sources {
		if m := source.now.Load(); m.pair != nil {
			all[source.files.Use] = m.pair.Leaf.NotAfter
		}
	}
	return all
}

// Export registers the metrics. It is called once, before Run.
func (s *Store) Export(reg prometheus.Registerer) {
	set := metrics.In(reg)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reloads = set.Counter("tls_reloads_total",
		"Changes of certificate files, by what they are for (use) and result: ok, or failed where the files before stay in force.", "use",
		"result")
	for _, source := range s.sources {
		s.show(source)
	}
	scrape := set.Snapshot()
	expiry := scrape.Gauge("tls_certificate_expiry_seconds",
		"Seconds until the certificate in force expires, by what it is for (use: clients, admin, embed, workers, nats, etcd); negative once it has.", "use")
	scrape.Read(func() {
		for use, end := range s.Ends() {
			expiry.Set(time.Until(end).Seconds(), use)
		}
	})
}

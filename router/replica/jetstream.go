package replica

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// JetStream is a [Store] in a bucket of NATS JetStream, which it creates if missing. The entry KIND/NAME has the key
// KIND.NAME, NAME in base64url without padding.
type JetStream struct {
	conn   *nats.Conn
	js     jetstream.JetStream
	bucket string
	log    *slog.Logger
}

const (
	callLimit  = 2 * time.Second
	probeEvery = 2 * time.Second
)

// maxBucketBytes bounds a bucket that open creates.
const maxBucketBytes = 64 << 20

var errAnother = errors.New("this is not the bucket that was followed before")

// OverJetStream returns the store of a group of gateways. conn need not be connected yet, and stays the caller's to
// close.
func OverJetStream(conn *nats.Conn, group string, log *slog.Logger) (*JetStream, error) {
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(callLimit))
	if err != nil {
		return nil, err
	}
	return &JetStream{conn, js, "TANDEM_STATE_" + group, log}, nil
}

// Follow implements [Store]. The store's name is the bucket's creation time.
func (j *JetStream) Follow(ctx context.Context, all func(store string, entries map[string][]byte),
	one func(name string, value []byte)) error {
	kv, err := j.open(ctx)
	if err != nil {
		return err
	}
	made, err := j.made(ctx, kv)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := kv.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = watch.Stop() }() // ctx ends it too
	probes := time.NewTicker(probeEvery)
	defer probes.Stop()
	entries, listed := map[string][]byte{}, false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-probes.C:
			switch now, err := j.made(ctx, kv); {
			case err != nil:
				return err
			case now != made:
				return errAnother
			case !listed:
				return errors.New("the bucket's entries did not arrive")
			}
		case e, open := <-watch.Updates():
			switch {
			case !open:
				return errors.New("the watch was closed")
			case e == nil: // that was all
				listed = true
				all(made, entries)
				continue
			}
			name, ok := j.name(e.Key())
			if !ok {
				continue
			}
			value := e.Value()
			switch {
			case e.Operation() != jetstream.KeyValuePut:
				value = nil
			case value == nil:
				value = []byte{}
			}
			switch {
			case listed:
				one(name, value)
			case value == nil:
				delete(entries, name)
			case len(entries) < maxEntries:
				entries[name] = value
			}
		}
	}
}

// made returns when the bucket was created.
func (j *JetStream) made(ctx context.Context, kv jetstream.KeyValue) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	s, err := kv.Status(ctx)
	if err != nil {
		return "", err
	}
	bucket, ok := s.(*jetstream.KeyValueBucketStatus)
	if !ok {
		return "", errors.New("the bucket has no creation time")
	}
	return bucket.StreamInfo().Created.UTC().Format(time.RFC3339Nano), nil
}

// open finds the bucket or creates it: with three copies if NATS is a cluster that can.
func (j *JetStream) open(ctx context.Context) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*callLimit)
	defer cancel()
	kv, err := j.js.KeyValue(ctx, j.bucket)
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount),
		errors.Is(err, nats.ErrNoResponders):
		return nil, errors.Join(ErrNoStore, err)
	case !errors.Is(err, jetstream.ErrBucketNotFound):
		return kv, err
	}
	cfg := jetstream.KeyValueConfig{
		Bucket: j.bucket, Description: "What operators changed while Tandem's gateways ran.",
		MaxValueSize: maxBytes, MaxBytes: maxBucketBytes, Replicas: 1,
	}
	if j.conn.ConnectedClusterName() != "" {
		cfg.Replicas = 3
		if kv, err = j.js.CreateKeyValue(ctx, cfg); err == nil {
			return kv, nil
		}
		j.log.Debug("NATS cannot create a bucket with three copies", "bucket", j.bucket, "error", err)
		cfg.Replicas = 1
	}
	return j.js.CreateKeyValue(ctx, cfg)
}

// Put implements [Store].
func (j *JetStream) Put(ctx context.Context, name string, value []byte) error {
	return j.with(ctx, func(ctx context.Context, kv jetstream.KeyValue) error {
		_, err := kv.Put(ctx, key(name), value)
		return err
	})
}

// Delete implements [Store].
func (j *JetStream) Delete(ctx context.Context, name string) error {
	return j.with(ctx, func(ctx context.Context, kv jetstream.KeyValue) error { return kv.Delete(ctx, key(name)) })
}

func (j *JetStream) with(ctx context.Context, call func(context.Context, jetstream.KeyValue) error) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	kv, err := j.js.KeyValue(ctx, j.bucket)
	if err != nil {
		return err
	}
	return call(ctx, kv)
}

// Where implements [Store].
func (j *JetStream) Where() string { return "NATS JetStream, bucket " + j.bucket }

func key(name string) string {
	kind, rest, _ := strings.Cut(name, "/")
	return kind + "." + base64.RawURLEncoding.EncodeToString([]byte(rest))
}

// name returns the entry's name of a key.
func (j *JetStream) name(of string) (string, bool) {
	kind, rest, ok := strings.Cut(of, ".")
	if ok {
		if rest, err := base64.RawURLEncoding.DecodeString(rest); err == nil {
			return kind + "/" + string(rest), true
		}
	}
	j.log.Warn("operator's change in NATS ignored: its key has no name", "key", of)
	return "", false
}

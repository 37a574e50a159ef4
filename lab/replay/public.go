package replay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/tandem-pd/tandem/internal/terminal"
)

// PublicTrace is a published trace that does not ship with the program.
type PublicTrace struct {
	// File is the publishers' name.
	File  string
	About string
	// Bytes is its size, SHA256 its checksum in hexadecimal: both of the file as it is published, not compressed.
	Bytes  int64
	SHA256 string
	// Project is where it comes from, URL the file itself.
	Project, URL string
	Licence      string
}

// mooncake is the revision of the repository that the checksums are of.
const mooncake = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/a2a4b18ac537fd798d50e6e9f57031ce86419a37/FAST25-release/traces/"

// PublicTraces lists the public traces.
func PublicTraces() []PublicTrace {
	return []PublicTrace{
		{
			File: "conversation_trace.jsonl", About: "12,031 requests of a chat service over 59 minutes, with the sharing of their prompts",
			Bytes: 3_029_533, SHA256: "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
			Project: "https://github.com/kvcache-ai/Mooncake", URL: mooncake + "conversation_trace.jsonl", Licence: "Apache-2.0",
		},
		{
			File: "synthetic_trace.jsonl", About: "3,993 requests made of public data sets over 17 minutes",
			Bytes: 1_136_313, SHA256: "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
			Project: "https://github.com/kvcache-ai/Mooncake", URL: mooncake + "synthetic_trace.jsonl", Licence: "Apache-2.0",
		},
	}
}

// PublicTraceAt is the public trace that a path names by its last part, with or without .gz.
func PublicTraceAt(path string) (t PublicTrace, ok bool) {
	for _, t := range PublicTraces() {
		if strings.TrimSuffix(filepath.Base(path), ".gz") == t.File {
			return t, true
		}
	}
	return t, false
}

// Absent turns the error of opening a trace that is not there into a sentence
// with instructions to get it. Other errors stay as they are.
func Absent(path string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if t, ok := PublicTraceAt(path); ok {
		return absent{err, fmt.Sprintf("%s is absent; `gateway traces fetch %[1]s` downloads it (%.1f MB, %s, from %s)", path,
			float64(t.Bytes)/1e6, t.Licence, t.Project)}
	}
	return absent{err, fmt.Sprintf("%s is absent; `gateway traces` lists published traces, and without this setting the built-in one is used", path)}
}

// absent is an error with a sentence of its own.
type absent struct {
	error
	text string
}

func (e absent) Error() string { return e.text }
func (e absent) Unwrap() error { return e.error }

// Fetch downloads the trace and returns it once its checksum is right. report is called with the bytes read so far.
func (t *PublicTrace) Fetch(ctx context.Context, client *http.Client, report func(read int64)) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.URL, nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", t.URL, res.Status)
	}
	data, err := io.ReadAll(terminal.NewReader(io.LimitReader(res.Body, t.Bytes+1), report))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.URL, err)
	}
	return data, t.Verify(data)
}

// Verify checks that data is the trace, gzipped or not.
func (t *PublicTrace) Verify(data []byte) error {
	in, err := unzipped(bytes.NewReader(data), t.File)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(in, t.Bytes+1)); err != nil {
		return fmt.Errorf("%s: %w", t.File, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != t.SHA256 {
		return fmt.Errorf("%s has the SHA-256 %s, not %s", t.File, got, t.SHA256)
	}
	return nil
}

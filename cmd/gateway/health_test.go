package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// An unhealthy gateway reports the reason in one line.
func TestHealthReportsTheReason(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"status":"unhealthy","detail":{"status":"unavailable","pools":[]}}`:                                                                                     `503 "unhealthy": no worker has joined`,
		`{"status":"unhealthy","detail":{"status":"starting","awaits":"0 of 2 workers are ready","pools":[]}}`:                                                    `503 "unhealthy": 0 of 2 workers are ready`,
		`{"status":"draining","detail":{"status":"ok","pools":[{"model":"m","role":"both","workers":1}]}}`:                                                        `503 "draining": the gateway is stopping`,
		`{"status":"unhealthy","detail":{"status":"unavailable","pools":[{"model":"m","role":"prefill","workers":2},{"model":"m","role":"decode","workers":0}]}}`: `"m" has 2 prefill, "m" has 0 decode; see gateway workers list`,
		`<html>`: `503 ""`,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, body)
		}))
		status, stdout, stderr := inside(t, nil, "health", "--url", server.URL)
		server.Close()
		if status != exitFailed || stdout != "" || !strings.HasSuffix(stderr, want+"\n") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: status %d, %s%s, want …%s", body, status, stdout, stderr, want)
		}
	}
}

// The address is that of the gateway's own settings where none is given.
func TestHealthCommand(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status":"healthy"}`) }))
	defer server.Close()
	port := strings.TrimPrefix(server.URL, "http://127.0.0.1:")
	lines(t, []string{"TANDEM_HTTP_PORT=" + port, "TANDEM_HTTP_HOST=0.0.0.0"}, "health", []line{
		{"", exitOK, ""},
		{"--url " + server.URL, exitOK, ""},
		{"--url http://127.0.0.1:1", exitFailed, "127.0.0.1:1"},
		{"--url 127.0.0.1", exitUsage, ""},
	})
}

// TestHealthByAnAuthority: a gateway elsewhere whose certificate no authority of this machine vouches for.
func TestHealthByAnAuthority(t *testing.T) {
	t.Parallel()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status":"healthy"}`) }))
	defer srv.Close()
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	testkit.Write(t, ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	lines(t, nil, "health --url "+srv.URL, []line{
		{"--ca-file " + ca, exitOK, ""},
		{"", exitFailed, "unknown authority"},
		{"--ca-file " + os.Args[0], exitUsage, "ca-file"}, // there is none in it
	})
}

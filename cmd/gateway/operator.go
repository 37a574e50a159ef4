package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/internal/edge"
)

// local is where a gateway that shares this command's environment or file
// listens.
type local struct {
	Host string `setting:"http-host"`
	Port int    `setting:"http-port"`
}

// localGroup is those rows of the gateway's table: a command in the gateway's
// own container finds it without being told.
func localGroup() settings.Group {
	g := settings.HTTPGroup()
	g.Title = "Gateway on this machine"
	g.Settings = slices.DeleteFunc(g.Settings, func(s settings.Setting) bool { return s.Name != "http-host" && s.Name != "http-port" })
	return g
}

// url is where to reach it from the same machine.
func (l local) url() string { return reachable(l.Host, strconv.Itoa(l.Port)) }

// reachable is the URL of a listener as this machine reaches it: one on every
// address by loopback.
func reachable(host, port string) string {
	switch host {
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// optionalURL accepts httpURL's addresses, or none.
func optionalURL(value any) error {
	if value.(string) == "" {
		return nil
	}
	return httpURL(value)
}

// operator asks a gateway for administration.
type operator struct {
	url     string
	key     string // empty: none
	keyFile string // where it came from, for errors
	client  *http.Client
}

const (
	// askLimit bounds one question to the gateway.
	askLimit = 10 * time.Second
	// maxAskBytes bounds its answer.
	maxAskBytes = 64 << 20
)

// newOperator makes an operator, with the first key of keyFile where one is
// named.
func newOperator(base, keyFile string, p process) (*operator, error) {
	o := &operator{url: strings.TrimRight(base, "/"), keyFile: keyFile, client: &http.Client{
		Timeout:   askLimit,
		Transport: &http.Transport{},
		// The key is for this gateway only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if keyFile != "" {
		data, err := p.readFile(keyFile)
		if err != nil {
			return nil, usageError{fmt.Errorf("admin-key-file: %w", err)}
		}
		if o.key = edge.FirstKey(data); o.key == "" {
			return nil, usageError{fmt.Errorf("admin-key-file: %s: there is no key in it", keyFile)}
		}
	}
	return o, nil
}

// close lets the connections go.
func (o *operator) close() { o.client.CloseIdleConnections() }

// refusal is an answer that is none: what the gateway said.
type refusal struct {
	status  int
	code    string
	message string
}

func (r *refusal) Error() string { return r.message }

// ask sends one question and reads the answer's JSON into into. The error is a
// sentence for the operator, and wraps a *refusal where the gateway answered.
func (o *operator) ask(ctx context.Context, method, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, o.url+path, nil)
	if err != nil {
		return err
	}
	if o.key != "" {
		req.Header.Set("Authorization", "Bearer "+o.key)
	}
	res, err := o.client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("cannot reach the gateway at %s: %w; --admin-url says where it is", o.url, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAskBytes))
	if err != nil {
		return fmt.Errorf("the answer of %s broke off: %w", o.url, err)
	}
	if res.StatusCode != http.StatusOK {
		return o.explain(res.StatusCode, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s does not answer as a gateway: %w", o.url, err)
	}
	return nil
}

// explain says what to do about an answer other than 200.
func (o *operator) explain(status int, body []byte) error {
	var answer struct {
		Error struct{ Message, Code string }
	}
	_ = json.Unmarshal(body, &answer) // of what is no gateway, the status is all there is
	r := &refusal{status, answer.Error.Code, answer.Error.Message}
	if r.message == "" {
		r.message = fmt.Sprintf("it answered %d %s", status, http.StatusText(status))
	}
	switch {
	case status == http.StatusUnauthorized && o.key == "":
		return fmt.Errorf("%s wants an operator's key: --admin-key-file FILE (%w)", o.url, r)
	case status == http.StatusUnauthorized:
		return fmt.Errorf("%s does not take the first key of %s: --admin-key-file names another (%w)", o.url, o.keyFile, r)
	case status == http.StatusForbidden:
		return fmt.Errorf("%s refuses: %w; then --admin-key-file FILE or --admin-url URL here", o.url, r)
	case status == http.StatusNotFound && r.code != "worker_not_found":
		return fmt.Errorf("there is no administration at %s: the gateway may have an --admin-address, which --admin-url names here (%w)", o.url, r)
	default:
		return fmt.Errorf("%s: %w", o.url, r)
	}
}

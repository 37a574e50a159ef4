package kubernetes

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
)

// Bounds of what the API server may answer. A Pod has some ten kilobytes, and etcd takes none above 1.5 MiB.
const (
	pageLimit     = 100      // pods in one page of a list
	maxPageBytes  = 16 << 20 // of one page
	maxEventBytes = 4 << 20  // of one event of a watch
	maxFileBytes  = 1 << 20  // of a token or a certificate bundle
	maxRefusal    = 4 << 10  // of the text of an error that is read
)

// credentialsAge is for how long the mounted token and certificates are used before they are read again. The kubelet writes a new
// token when a fifth of the old one's hour is left.
const credentialsAge = time.Minute

// errGone is the API server's 410: what a list or a watch would go on from is no longer kept.
var errGone = errors.New("the history has been compacted")

// api calls one API server for the pods of one namespace. It is not safe for concurrent use.
type api struct {
	base      *url.URL
	namespace string
	selector  string
	folder    string        // of token and ca.crt; empty for neither
	timeout   time.Duration // of a page, and of the beginning of a watch

	client *http.Client
	ca     []byte // that client trusts
	token  string
	read   time.Time // when both were
}

// newAPI finds the API server as every pod does: by variables, and a mounted service account.
func newAPI(cfg Config) (*api, error) {
	namespace, selector := cfg.pods()
	a := &api{selector: selector, namespace: namespace, folder: cmp.Or(cfg.Account, defaultAccount), timeout: cfg.Timeout}
	server := cfg.Server
	if server == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("this is no pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
		}
		server = "https://" + net.JoinHostPort(host, port)
	}
	var err error
	if a.base, err = url.Parse(server); err != nil || a.base.Scheme != "https" {
		return nil, fmt.Errorf("the API server %s is no https URL", setting.Quote(server))
	}
	if a.namespace == "" {
		name, err := readBounded(filepath.Join(a.folder, "namespace"))
		if err != nil {
			return nil, fmt.Errorf("no namespace is set, and the pod's own cannot be read: %w", err)
		}
		a.namespace = strings.TrimSpace(string(name))
	}
	return a, a.credentials(time.Now())
}

// credentials reads token and certificates where they have not been read for [credentialsAge]. Its errors carry no token.
func (a *api) credentials(now time.Time) error {
	if !a.read.IsZero() && now.Sub(a.read) < credentialsAge {
		return nil
	}
	token, err := readBounded(filepath.Join(a.folder, "token"))
	if err != nil {
		return fmt.Errorf("service account: %w", err)
	}
	ca, err := readBounded(filepath.Join(a.folder, "ca.crt"))
	if err != nil {
		return fmt.Errorf("service account: %w", err)
	}
	text := strings.TrimSpace(string(token))
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("service account: the token is empty, or is no line of text")
	}
	if a.client == nil || !bytes.Equal(ca, a.ca) {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(ca) {
			return errors.New("service account: ca.crt has no certificate")
		}
		a.close()
		a.client, a.ca = newClient(roots, a.timeout), ca
	}
	a.token, a.read = text, now
	return nil
}

// newClient returns a client that has no proxy and follows no redirect: the token would go with it. It detects a dead
// connection within half a minute.
func newClient(roots *x509.CertPool, timeout time.Duration) *http.Client {
	dialer := net.Dialer{Timeout: timeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second,
		Interval: 5 * time.Second, Count: 3}}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: timeout, ResponseHeaderTimeout: timeout, MaxResponseHeaderBytes: 64 << 10,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (a *api) close() {
	if a.client != nil {
		a.client.CloseIdleConnections()
	}
}

// call asks for pods with the query. Its error is [errGone] for a 410. The caller closes the body.
func (a *api) call(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	if err := a.credentials(time.Now()); err != nil {
		return nil, err
	}
	query.Set("labelSelector", a.selector)
	at := a.base.JoinPath("api/v1/namespaces", a.namespace, "pods")
	at.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "tandem")
	req.Header.Set("Authorization", "Bearer "+a.token)
	res, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	if res.StatusCode == http.StatusUnauthorized {
		a.read = time.Time{} // there may be another token by now
	}
	return nil, refusal(res.StatusCode, text, a.namespace)
}

// refusal is the error of an answer that is not 200, whose body is a Status most often.
func refusal(code int, body []byte, namespace string) error {
	var status struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(body, &status) // stays empty when it is something else
	switch code {
	case http.StatusGone:
		return errGone
	case http.StatusUnauthorized:
		return errors.New("the API server does not take the service account's token (401)")
	case http.StatusForbidden:
		return fmt.Errorf("the service account may not do this (403): "+
			"it needs a Role with get, list and watch of pods in the namespace %s: %s", namespace, setting.Quote(status.Message))
	}
	return fmt.Errorf("the API server answers %d: %s", code, setting.Quote(status.Message))
}

// list is every pod, and the version from which a watch goes on. odd is called for each item that is no Pod. Of more pods
// than most the rest is not asked for.
func (a *api) list(ctx context.Context, most int, odd func(error)) (all []pod, version string, err error) {
	query := url.Values{"limit": {strconv.Itoa(pageLimit)}}
	for {
		page, err := a.page(ctx, query)
		if err != nil {
			return nil, "", err
		}
		for _, item := range page.Items {
			p, err := readPod(item)
			if err != nil {
				odd(err)
				continue
			}
			all = append(all, p)
		}
		switch next := page.Metadata.Continue; {
		case page.Metadata.ResourceVersion == "":
			return nil, "", errors.New("the API server answers with something else than a list of pods")
		case next == "" || len(all) > most:
			return all, page.Metadata.ResourceVersion, nil
		default:
			query.Set("continue", next)
		}
	}
}

type page struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

func (a *api) page(ctx context.Context, query url.Values) (p page, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	body, err := a.call(ctx, query)
	if err != nil {
		return p, err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxPageBytes+1))
	switch {
	case err != nil:
		return p, fmt.Errorf("list pods: %w", err)
	case len(text) > maxPageBytes:
		return p, fmt.Errorf("list pods: %d of them are longer than %d bytes", pageLimit, maxPageBytes)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("list pods: %w", err)
	}
	return p, nil
}

// event is one line of a watch.
type event struct {
	kind    string // ADDED, MODIFIED, DELETED or BOOKMARK
	pod     pod
	version string
}

// watch calls each with every change since version. It returns nil when the API server ends the watch within length,
// as requested, and otherwise an error: [errGone] if version is too old. began is called once the API server has
// agreed. odd is called for events that are none of a Pod; they are passed over.
func (a *api) watch(ctx context.Context, version string, length time.Duration, began func(), each func(event), odd func(error)) error {
	ctx, cancel := context.WithTimeout(ctx, length+a.timeout)
	defer cancel()
	body, err := a.call(ctx, url.Values{
		"watch": {"1"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version},
		"timeoutSeconds": {strconv.Itoa(max(1, int(length/time.Second)))},
	})
	if err != nil {
		return err
	}
	defer body.Close()
	began()
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 64<<10), maxEventBytes)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		e, err := readEvent(lines.Bytes(), a.namespace)
		switch {
		case errors.Is(err, errOdd):
			odd(err)
		case err != nil:
			return err
		}
		if e.version != "" {
			each(e)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("watch pods: an event is longer than %d bytes", maxEventBytes)
	case err != nil:
		return fmt.Errorf("watch pods: %w", err)
	}
	return nil
}

// errOdd is an object that is no Pod; what follows it may be one.
var errOdd = errors.New("an object is no Pod")

// readEvent reads a line of a watch. Of an object that is no Pod the version is read where it has one, and the name where it is
// deleted, with an [errOdd].
func readEvent(line []byte, namespace string) (e event, err error) {
	var raw struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		return e, fmt.Errorf("watch pods: a line is no event: %w", err)
	}
	e.kind = raw.Type
	switch raw.Type {
	case "ERROR":
		var status struct {
			Code int `json:"code"`
		}
		_ = json.Unmarshal(raw.Object, &status) // stays 0 when it is something else
		return e, refusal(status.Code, raw.Object, namespace)
	case "BOOKMARK":
		e.version = versionOf(raw.Object)
		return e, nil
	case "ADDED", "MODIFIED", "DELETED":
		if e.pod, err = readPod(raw.Object); err != nil {
			if e.version = versionOf(raw.Object); e.kind != "DELETED" || e.pod.Metadata.Name == "" {
				e.kind = "BOOKMARK" // what it was before counts
			}
			return e, err
		}
		e.version = e.pod.Metadata.ResourceVersion
		return e, nil
	}
	return event{}, fmt.Errorf("%w: an event of the type %s", errOdd, setting.Quote(raw.Type))
}

// versionOf is the version of any object, empty where it has none.
func versionOf(object []byte) string {
	var o struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(object, &o) // stays empty when it is something else
	return o.Metadata.ResourceVersion
}

// readPod reads a Pod. Its error is an [errOdd], and what could be read comes with it.
func readPod(object []byte) (p pod, err error) {
	if err := json.Unmarshal(object, &p); err != nil {
		return p, fmt.Errorf("%w: %s: %w", errOdd, setting.Quote(p.Metadata.Name), err)
	}
	if p.Metadata.Name == "" || p.Metadata.UID == "" || p.Metadata.ResourceVersion == "" {
		return p, fmt.Errorf("%w: %s has no name, UID or version", errOdd, setting.Quote(p.Metadata.Name))
	}
	return p, nil
}

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(data) > maxFileBytes {
		err = fmt.Errorf("%s is longer than %d bytes", name, maxFileBytes)
	}
	return data, err
}

package edge

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/auth"
)

// paper is a Console with one text on every page. Each event of its streams is one that the test sends.
type paper struct {
	events  chan string
	viewers atomic.Int64
	full    atomic.Bool
}

func newPaper() *paper { return &paper{events: make(chan string)} }

func (*paper) Page(path, query string) Page {
	p := Page{Status: http.StatusOK, ContentType: "text/html; charset=utf-8", Body: []byte("page " + path + "?" + query)}
	if strings.HasPrefix(path, "/static/") {
		p.Tag = `"1"`
	}
	return p
}

func (*paper) SignIn(wrong bool) Page {
	text := "key please"
	if wrong {
		text = "no key of ours"
	}
	return Page{Status: http.StatusUnauthorized, ContentType: "text/html; charset=utf-8", Body: []byte(text)}
}

func (p *paper) Watch() (next func(ctx context.Context) ([]byte, error), leave func(), ok bool) {
	if p.full.Load() {
		return nil, nil, false
	}
	p.viewers.Add(1)
	return func(ctx context.Context) ([]byte, error) {
		select {
		case text := <-p.events:
			return []byte("data: " + text + "\n\n"), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}, func() { p.viewers.Add(-1) }, true
}

// form is a POST of a key.
func form(k string, headers ...string) string {
	body := url.Values{"key": {k}}.Encode()
	return get("POST /signin", append(headers, "Content-Type: application/x-www-form-urlencoded",
		"Content-Length: "+strconv.Itoa(len(body)))...) + body
}

func TestSignIn(t *testing.T) {
	sv := guarded(t, func(c *Config) { c.Console = newPaper() })
	resp, body := sv.ask(get("GET /", "Accept: text/html"))
	assert.True(t, resp.StatusCode == 401 && body == "key please", "a browser without a key gets %d %s", resp.StatusCode, body)
	sv.refuses(get("GET /"), 401, "invalid_admin_key")
	for _, wrong := range []string{"", "op-unknown-0123456789", clientKey} {
		resp, body := sv.ask(form(wrong))
		assert.True(t, resp.StatusCode == 401 && body == "no key of ours" && resp.Header.Get("Set-Cookie") == "", "with the key %q: %d %s",
			wrong, resp.StatusCode, body)
	}
	for _, foreign := range []string{"Origin: https://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site",
		"Sec-Fetch-Site: same-site"} {
		sv.refuses(form(adminKey, foreign), 403, "origin_not_allowed")
	}
	sv.refuses(get("POST /signin", "Content-Type: text/plain", "Content-Length: 3")+"key", 415, "unsupported_media_type")

	resp, _ = sv.ask(form(adminKey, "Origin: http://t", "Sec-Fetch-Site: same-origin"))
	require.Equal(t, 303, resp.StatusCode)
	require.Equal(t, "/", resp.Header.Get("Location"))
	cookie := resp.Cookies()[0]
	hidden := cookie.HttpOnly && cookie.SameSite == http.SameSiteStrictMode
	assert.True(t, hidden && cookie.Path == "/" && !cookie.Secure && cookie.MaxAge == 43200, cookie)
	assert.NotContains(t, cookie.Value, adminKey)
	resp, _ = sv.ask(form(adminKey, "Origin: https://t"))
	assert.True(t, resp.Cookies()[0].Secure, "behind TLS the cookie is sent without it, too")
	carried := "Cookie: other=1; " + cookie.Name + "=" + cookie.Value
	resp, body = sv.ask(get("GET /console/now?x=1", carried))
	assert.True(t, resp.StatusCode == 200 && body == "page /console/now?x=1", "with the cookie: %d %s", resp.StatusCode, body)
	assert.Contains(t, resp.Header.Get("Content-Security-Policy"), "default-src 'self'")
	assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	// The ticket opens the console and nothing else.
	for _, other := range []string{get("GET /workers", carried), get("GET /metrics", carried), change("/workers/decode-1/cordon", carried)} {
		sv.refuses(other, 401, "invalid_admin_key")
	}
	old := auth.Bearer("Bearer " + adminKey).Ticket(time.Now().Add(-time.Second))
	sv.refuses(get("GET /", "Cookie: "+ticketCookie+"="+old), 401, "invalid_admin_key")
	resp, _ = sv.ask(change("/signout", carried))
	assert.True(t, resp.StatusCode == 200 && resp.Cookies()[0].MaxAge == -1, "signing out: %d, %v", resp.StatusCode, resp.Cookies())
	assert.Contains(t, sv.logs.String(), "code=invalid_admin_key")
	assert.NotContains(t, sv.logs.String(), adminKey)
}

// What may be kept is asked for again by its tag.
func TestAssetsAreRevalidatedByTag(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON, func(c *Config) { c.Console = newPaper() })
	c := sv.dial()
	c.send(get("GET /static/a.js"), get("GET /static/a.js", `If-None-Match: "1"`))
	resp, body := c.receive()
	assert.True(t, resp.StatusCode == 200 && resp.Header.Get("ETag") == `"1"` && body != "", "%d %v", resp.StatusCode, resp.Header)
	resp, body = c.receive()
	assert.True(t, resp.StatusCode == 304 && body == "", "asked for again: %d %s", resp.StatusCode, body)
}

// A viewer gets the events as they come until it leaves. A shutdown does not wait for it.
func TestWatch(t *testing.T) {
	p := newPaper()
	sv := serve(t, loopback(t), answerJSON, func(c *Config) { c.Console = p })
	c := sv.dial()
	c.send(get("GET /console/stream"))
	resp := c.head()
	require.True(t, resp.StatusCode == 200 && resp.Header.Get("Content-Type") == "text/event-stream; charset=utf-8",
		"%d %v", resp.StatusCode, resp.Header)
	for _, text := range []string{"one", "two"} {
		p.events <- text
		event := make([]byte, len("data: one\n\n"))
		_, err := io.ReadFull(resp.Body, event)
		assert.NoError(t, err)
		assert.Equal(t, "data: "+text+"\n\n", string(event))
	}
	c.Close()
	eventually(t, "the viewer has left", func() bool { return p.viewers.Load() == 0 })

	p.full.Store(true)
	sv.refuses(get("GET /console/stream"), 503, "too_many_viewers")
	// A page of another origin gets no place among the viewers.
	sv.refuses(get("GET /console/stream", "Sec-Fetch-Site: cross-site"), 403, "origin_not_allowed")
	sv.serves(get("HEAD /console/stream"))

	p.full.Store(false)
	c = sv.dial()
	c.send(get("GET /console/stream"))
	resp = c.head()
	within, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	assert.NoError(t, sv.Shutdown(within))
	rest, err := io.ReadAll(resp.Body)
	assert.True(t, err == nil && len(rest) == 0, "the stream ends with %q, %v", rest, err)
	assert.Zero(t, p.viewers.Load(), "viewers are left")
}

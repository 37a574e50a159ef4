package http1

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
)

// netHTTP is the same call by net/http's client: the yardstick of what ours sends and costs.
type netHTTP struct{ transport *http.Transport }

func newNetHTTP() *netHTTP {
	return &netHTTP{&http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 512, WriteBufferSize: 32 << 10, ReadBufferSize: 16 << 10}}
}

func (h *netHTTP) Call(ctx context.Context, leg Leg) (Stream, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, leg.Base+leg.Path, bytes.NewReader(leg.Body.AppendTo(nil)))
	if err != nil {
		return nil, err
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "User-Agent": {"tandem"}, "X-Request-Id": {leg.RequestID}}
	if leg.Stream {
		req.Header["Accept"] = []string{"text/event-stream"}
	}
	if leg.Rank >= 0 {
		req.Header["X-Data-Parallel-Rank"] = []string{strconv.Itoa(leg.Rank)}
	}
	if leg.TraceParent != "" {
		req.Header["Traceparent"] = []string{leg.TraceParent}
	}
	if leg.TraceState != "" {
		req.Header["Tracestate"] = []string{leg.TraceState}
	}
	for _, f := range leg.Forward {
		req.Header[f.Name] = append(req.Header[f.Name], f.Value)
	}
	res, err := h.transport.RoundTrip(req)
	return netStream{res}, err
}

func (h *netHTTP) CloseIdle() { h.transport.CloseIdleConnections() }

type netStream struct{ *http.Response }

func (s netStream) Status() int                { return s.StatusCode }
func (s netStream) ContentType() string        { return s.Header.Get("Content-Type") }
func (s netStream) Read(p []byte) (int, error) { return s.Body.Read(p) }
func (s netStream) Close() error               { return s.Body.Close() }

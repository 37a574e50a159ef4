package connector

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// SGLang is the hand-off of SGLang's prefill and decode modes over any transfer backend (mooncake, nixl). Both
// workers get the client's body at once, with prefill's bootstrap server and a room, a number under which they find
// each other. Decode allocates blocks and shakes hands; prefill computes, sends the blocks and the first token, and
// answers. Fields as in SGLang's srt/managers/io_struct.py, the order as in srt/disaggregation/prefill.py and
// decode.py.
//
// Both bodies must sample alike: prefill's first token is the answer's, with its logprobs, and prefill stops after
// it.
type SGLang struct{}

var (
	_ Connector = SGLang{}
	_ Repeater  = SGLang{}
)

// bootstrapPort is SGLang's default of --disaggregation-bootstrap-port.
const bootstrapPort = 8998

// Pairs requires equal page sizes: blocks are moved unchanged. SGLang's decode worker fails the first request
// otherwise.
func (SGLang) Pairs(p, d *pools.Worker) error {
	if p.Page() != d.Page() {
		return fmt.Errorf("its pages have %d tokens and those of %s %d: start both with the same --page-size", p.Page(), d.ID, d.Page())
	}
	return nil
}

// Plan edits the client's body into both legs. They differ in request id and rank, and prefill's answer is not
// streamed: only its end and usage are read.
func (s SGLang) Plan(r Round) (Plan, error) {
	if r.P == nil {
		return Plan{}, openai.BadRequest("", "decode workers of SGLang take no prompt without a prefill worker's")
	}
	host, port := sideChannel(r.P, bootstrapPort)
	edit := func(role pools.Role, w *pools.Worker, rank int) func(*openai.Edit) {
		return func(e *openai.Edit) {
			e.SetString("bootstrap_host", urlHost(host))
			e.SetInt("bootstrap_port", int64(port))
			e.SetInt("bootstrap_room", s.room(r))
			e.SetString("rid", s.rid(r, role))
			if r.Priority != nil && w.Prioritizes { // the higher first, as in the gateway
				e.SetInt("priority", int64(*r.Priority))
			}
			if r.P.Ranks() > 1 {
				e.SetInt("disagg_prefill_dp_rank", int64(r.PRank))
			}
			if w.Ranks() > 1 { // for releases that do not read the header
				e.SetInt("routed_dp_rank", int64(rank))
			}
		}
	}
	decode, err := leg(r, pools.Decode, edit(pools.Decode, r.D, r.DRank))
	if err != nil {
		return Plan{}, err
	}
	prefillEdit := edit(pools.Prefill, r.P, r.PRank)
	prefill, err := leg(r, pools.Prefill, func(e *openai.Edit) {
		prefillEdit(e)
		e.Set("stream", []byte("false"))
		e.Delete("stream_options")
	})
	prefill.Stream = false
	return Plan{Order: Together, Prefill: prefill, Decode: decode}, err
}

// urlHost returns host as in a URL. Decode joins host and port unchanged; since NetworkAddress (srt/utils/network.py)
// it accepts both forms.
func urlHost(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// room returns the round's bootstrap_room, far above 0, which health probes use, and at most 2^63−1. Prefill workers
// that balance by follow_bootstrap_room compute the prompt on rank room % ranks, so it encodes the chosen rank;
// others read the rank from its field.
func (SGLang) room(r Round) int64 {
	ranks := int64(r.P.Ranks())
	room := r.TransferID - r.TransferID%ranks - ranks // adding a rank must not exceed the largest
	return room + int64(r.PRank)
}

// rid returns a leg's request id for the engine. All have one length: SGLang aborts every request whose id has the
// given prefix.
func (SGLang) rid(r Round, role pools.Role) string {
	return secret(r, string(role))
}

// secret returns 32 hexadecimal digits for one use in the round, derived from the unguessable TransferID.
func secret(r Round, use string) string {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(use), uint64(r.TransferID)))
	return hex.EncodeToString(sum[:16])
}

// OnPrefill checks prefill's answer. There is nothing to bind, and decode reports a first token that ends the answer.
func (SGLang) OnPrefill(_ Round, answer prefill.Answer, _ time.Time) (prefill.KV, bool, error) {
	return prefill.KV{}, false, answered(answer)
}

// ReportsCached: the count comes with the first token (srt/disaggregation/decode.py, _commit_transfer_to_req).
func (SGLang) ReportsCached() {}

// Bind changes nothing: both legs carry the room.
func (SGLang) Bind(*http1.Leg, prefill.KV) {}

// Release aborts both requests by id. SGLang checks only every 4 s whether a caller has left
// (SGLANG_REQUEST_STATE_WAIT_TIMEOUT), and a leg without its partner would wait 300 s
// (SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT, SGLANG_DISAGGREGATION_WAITING_TIMEOUT), decode with blocks for the whole
// prompt. Unknown ids have no effect.
func (s SGLang) Release(r Round, _ prefill.KV) []http1.Leg {
	abort := func(w *pools.Worker, role pools.Role) http1.Leg {
		return http1.Leg{
			Purpose: fault.Release, Worker: w.ID, Base: w.Address, Path: "/abort_request", RequestID: r.ID + "-release", Rank: -1,
			Body: http1.Body{[]byte(`{"rid":"` + s.rid(r, role) + `"}`)},
		}
	}
	return []http1.Leg{abort(r.D, pools.Decode), abort(r.P, pools.Prefill)}
}

// RepeatAfter returns when aborts are repeated: one that overtakes its request aborts nothing.
func (SGLang) RepeatAfter() time.Duration { return 250 * time.Millisecond }

// sideChannel returns where decode reaches prefill's bootstrap server or side channel, at port by default. A loopback
// address in the record is replaced by the worker's host.
func sideChannel(p *pools.Worker, port int) (host string, _ int) {
	host = transferHost(p)
	if _, text, err := net.SplitHostPort(p.Transfer); err == nil {
		if n, err := strconv.Atoi(text); err == nil {
			port = n
		}
	}
	if u, err := url.Parse(p.Address); err == nil && loopback(host) {
		host = u.Hostname()
	}
	return host, port
}

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
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// SGLang is the hand-off of SGLang's own prefill and decode modes, whatever moves the bytes (mooncake, nixl): both
// workers get the client's body at once, with the address of prefill's bootstrap server and a number, the room, under
// which they find each other there. Decode takes blocks for the prompt and shakes hands, prefill computes, sends the
// blocks and the first token, and answers. Fields as in SGLang's srt/managers/io_struct.py, the order of events as in
// srt/disaggregation/prefill.py and decode.py.
//
// Neither body may sample differently from the other: prefill's first token is the answer's first token, with its
// logprobs, and prefill itself stops after it.
type SGLang struct{}

var (
	_ Connector = SGLang{}
	_ Repeater  = SGLang{}
)

// bootstrapPort is SGLang's default of --disaggregation-bootstrap-port.
const bootstrapPort = 8998

// Pairs refuses other page sizes: blocks are moved as they are. SGLang's decode worker finds that out at the first
// request, and fails it.
func (SGLang) Pairs(p, d *pools.Worker) error {
	if p.Page() != d.Page() {
		return fmt.Errorf("its pages have %d tokens and those of %s %d: start both with the same --page-size", p.Page(), d.ID, d.Page())
	}
	return nil
}

// Plan edits the client's body into both legs. They differ in the request's id, the rank, and in that prefill's answer
// comes whole: only its end and its usage are read.
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
			if w.Ranks() > 1 { // the header says it too, which releases before this field read
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

// urlHost is host as it stands in a URL. Decode puts host and port together as they come; since NetworkAddress
// (srt/utils/network.py) it takes either form.
func urlHost(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// room is the round's bootstrap_room, far above 0, which health probes use, and at most 2^63−1. Prefill workers with
// several ranks that balance by follow_bootstrap_room compute the prompt on rank room % ranks, so that it names the rank
// that was chosen; other balances read the rank from its field.
func (SGLang) room(r Round) int64 {
	ranks := int64(r.P.Ranks())
	room := r.TransferID - r.TransferID%ranks - ranks // so that adding a rank cannot exceed the largest
	return room + int64(r.PRank)
}

// rid is what the engine of a leg calls the round's request. All have one length: SGLang aborts every request whose id
// begins with the one that is to be aborted.
func (SGLang) rid(r Round, role pools.Role) string {
	return secret(r, string(role))
}

// secret is 32 digits for one use in the round, which follow from the number that no client can guess.
func secret(r Round, use string) string {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(use), uint64(r.TransferID)))
	return hex.EncodeToString(sum[:16])
}

// OnPrefill checks that prefill's answer is one. There is nothing to bind: that the blocks have arrived, decode knows
// first. A first token that ends the answer is decode's to report.
func (SGLang) OnPrefill(_ Round, answer prefill.Answer, _ time.Time) (prefill.KV, bool, error) {
	return prefill.KV{}, false, answered(answer)
}

// ReportsCached: the number comes with the first token (srt/disaggregation/decode.py, _commit_transfer_to_req).
func (SGLang) ReportsCached() {}

// Bind changes nothing: both legs carry the room.
func (SGLang) Bind(*upstream.Leg, prefill.KV) {}

// Abandon aborts both requests by their ids. SGLang looks whether a caller has left every 4 s only
// (SGLANG_REQUEST_STATE_WAIT_TIMEOUT), and a leg whose other one never comes would wait 300 s
// (SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT, SGLANG_DISAGGREGATION_WAITING_TIMEOUT), decode with blocks for the whole
// prompt. An id that the engine does not know changes nothing.
func (s SGLang) Abandon(r Round, _ prefill.KV) []upstream.Leg {
	abort := func(w *pools.Worker, role pools.Role) upstream.Leg {
		return upstream.Leg{
			Purpose: fault.Release, Worker: w.ID, Base: w.Address, Path: "/abort_request", RequestID: r.ID + "-release", Rank: -1,
			Body: upstream.Body{[]byte(`{"rid":"` + s.rid(r, role) + `"}`)},
		}
	}
	return []upstream.Leg{abort(r.D, pools.Decode), abort(r.P, pools.Prefill)}
}

// RepeatAfter is when aborts are sent again: one that overtakes its request finds nothing to abort.
func (SGLang) RepeatAfter() time.Duration { return 250 * time.Millisecond }

// sideChannel is where decode reaches prefill's bootstrap server or side channel, at port where its record names none. A loopback
// address is prefill's own view of itself.
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

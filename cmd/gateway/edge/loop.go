package edge

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
)

// headerGateway is in every answer, with the gateway's id, so that a gateway is not taken for a worker; and in every
// call to a worker, with the ids of the gateways that the request came through, so that each knows its own again.
const headerGateway = "Tandem-Gateway"

// maxGateways is how many gateways a request may come through.
const maxGateways = 8

// newGatewayID draws the id of this process.
func newGatewayID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// hop notes in call which gateways the request came through, this one included. Its error is a 508: it was here
// before, or came through too many.
func (s *Server) hop(call *handoff.Call, came []byte) error {
	if len(came) == 0 {
		call.Forward = s.hops
		return nil
	}
	ids := bytes.Split(came, []byte(","))
	for _, id := range ids {
		if string(bytes.TrimSpace(id)) == s.id || len(ids) > maxGateways {
			return openai.Loop()
		}
	}
	call.Forward = []upstream.Field{{Name: headerGateway, Value: s.id}}
	if len(came) <= maxGateways*(len(s.id)+2) && printable(came) {
		call.Forward[0].Value = string(came) + ", " + s.id
	}
	return nil
}

package edge

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
)

// headerGateway is in every answer, with the gateway's id, so that a gateway is not mistaken for a worker; and in
// every call to a worker, with the ids of the gateways on the request's path, to detect loops.
const headerGateway = "Tandem-Gateway"

// maxGateways is how many gateways a request may pass.
const maxGateways = 8

// newGatewayID returns a random id for this process.
func newGatewayID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// hop adds this gateway to the request's path in call. It returns a 508 for a loop or a path that is too long.
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
	call.Forward = []http1.Field{{Name: headerGateway, Value: s.id}}
	if len(came) <= maxGateways*(len(s.id)+2) && http1.Printable(came) {
		call.Forward[0].Value = string(came) + ", " + s.id
	}
	return nil
}

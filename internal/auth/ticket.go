package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// ticketBytes is a ticket's length before it is written in hexadecimal: until when it is valid, and who vouches for it.
const ticketBytes = 8 + sha256.Size

// Ticket returns a token that stands in for the digest's key until a time, in seconds. It reveals nothing of the key,
// and expires with the key's removal. Gateways with the same keys accept each other's tickets, across restarts.
func (d Digest) Ticket(until time.Time) string {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, ticketBytes), uint64(until.Unix()))
	return hex.EncodeToString(append(b, d.vouch(b)...))
}

// vouch signs the time until which a ticket is valid.
func (d Digest) vouch(until []byte) []byte {
	mac := hmac.New(sha256.New, d[:])
	mac.Write([]byte("tandem console ticket"))
	mac.Write(until)
	return mac.Sum(nil)
}

// HoldTicket reports whether the text is a ticket of one of the keys that is valid at now. It takes the same time
// whichever key it is.
func (ks Keys) HoldTicket(text []byte, now time.Time) bool {
	var b [ticketBytes]byte
	if len(text) != 2*ticketBytes {
		return false
	}
	if _, err := hex.Decode(b[:], text); err != nil || now.Unix() >= int64(binary.BigEndian.Uint64(b[:8])) {
		return false
	}
	found := 0
	for i := range ks {
		found |= subtle.ConstantTimeCompare(ks[i].vouch(b[:8]), b[8:])
	}
	return found == 1
}

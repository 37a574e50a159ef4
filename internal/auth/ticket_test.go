package auth

import (
	"strings"
	"testing"
	"time"
)

func TestTickets(t *testing.T) {
	keys, others := NewKeys(clientKey, adminKey), NewKeys(clientKey2)
	now := time.Unix(1_800_000_000, 0)
	ticket := []byte(Bearer("Bearer " + adminKey).Ticket(now.Add(time.Hour)))
	if !keys.HoldTicket(ticket, now) || !keys.HoldTicket(ticket, now.Add(time.Hour-time.Second)) {
		t.Error("a ticket is refused while it is valid")
	}
	forged := []byte(strings.Replace(string(ticket), string(ticket[:16]), "000000ffffffffff", 1)) // valid for longer
	for name, held := range map[string]bool{
		"after its time":     keys.HoldTicket(ticket, now.Add(time.Hour)),
		"without its key":    others.HoldTicket(ticket, now),
		"without any key":    Keys(nil).HoldTicket(ticket, now),
		"with another time":  keys.HoldTicket(forged, now),
		"cut off":            keys.HoldTicket(ticket[:len(ticket)-2], now),
		"longer":             keys.HoldTicket(append(ticket, "00"...), now),
		"not hexadecimal":    keys.HoldTicket([]byte(strings.Repeat("zz", ticketBytes)), now),
		"of nothing":         keys.HoldTicket(nil, now),
		"all zero":           keys.HoldTicket([]byte(strings.Repeat("00", ticketBytes)), now),
		"of the absence":     keys.HoldTicket([]byte(Bearer().Ticket(now.Add(time.Hour))), now),
		"the key in itself":  keys.HoldTicket([]byte(adminKey), now),
		"its first signed 0": keys.HoldTicket(make([]byte, 2*ticketBytes), now),
	} {
		if held {
			t.Errorf("a ticket %s is taken", name)
		}
	}
}

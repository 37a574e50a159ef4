package replica

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// rooms is books of workers that all have room for so many blocks.
type rooms struct {
	ledger
	blocks int
	asked  int
}

func (r *rooms) Overbooked(s Slot) bool {
	r.asked++
	sum := 0
	for _, shares := range r.ledger {
		sum += shares[s].ActiveBlocks
	}
	return sum > r.blocks
}

// TestTheFirstToAskGetsTheRoom: peers ask one owner for room that one of them fits in, in any order and with messages doubled;
// what comes after the first is refused, and refused no more once what was granted has ended.
func TestTheFirstToAskGetsTheRoom(t *testing.T) {
	slot := Slot{"m", pools.Decode, "w", 0}
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 5))
		books := &rooms{ledger: ledger{}, blocks: 10}
		owner := NewPeers(Config{Join: time.Second, Expire: time.Second}, NewOwn("o", 1), books, noon)
		var peers []*Own
		for i := range 5 {
			peers = append(peers, NewOwn(fmt.Sprint("p", i), uint64(i+1)))
		}
		ask := func(p *Own, blocks int) Answer {
			t.Helper()
			p.Set(slot, load.Share{Account: load.Account{Requests: 1, ActiveBlocks: blocks}})
			p.Ask(slot, "o")
			var got []Answer
			data := p.Say()
			for range 1 + rng.IntN(2) {
				do, err := hear(owner, data, noon, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range do {
					if e.Do == Reply && e.Peer == p.Name() {
						got = append(got, e.Say)
					}
				}
			}
			if len(got) == 0 || got[0].From != "o" || got[0].Epoch != p.Epoch() || got[0].Seq != p.Seq() {
				t.Fatalf("seed %d: answers %+v to question %d of %s", seed, got, p.Seq(), p.Name())
			}
			return got[0]
		}
		end := func(p *Own) {
			p.Set(slot, load.Share{})
			if _, err := hear(owner, p.Say(), noon, nil); err != nil {
				t.Fatal(err)
			}
		}
		for range 20 {
			rng.Shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
			for i, p := range peers {
				if a := ask(p, 6); a.Granted != (i == 0) {
					t.Fatalf("seed %d: question %d is granted: %v", seed, i, a.Granted)
				}
			}
			for _, p := range peers {
				end(p)
			}
		}
	}
}

// TestWhoIsNotAskedIsSilent: a question for another gateway, for a pool too many, and a message without one have no answer.
func TestWhoIsNotAskedIsSilent(t *testing.T) {
	books := &rooms{ledger: ledger{}, blocks: 10}
	p := NewPeers(Config{Join: time.Second, Expire: time.Second}, NewOwn("o", 1), books, noon)
	peer := NewOwn("a", 1)
	replies := func(slot Slot, owner string) (n int) {
		peer.Set(slot, load.Share{Account: load.Account{Requests: 1 + int(peer.Seq())}})
		if owner != "" {
			peer.Ask(slot, owner)
		}
		do, err := hear(p, peer.Say(), noon, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range do {
			if e.Do == Reply {
				n++
			}
		}
		return n
	}
	slot := Slot{"m", pools.Decode, "w", 0}
	if n := replies(slot, "o"); n != 1 {
		t.Errorf("%d answers to its own question", n)
	}
	if n := replies(slot, "another") + replies(slot, ""); n != 0 {
		t.Errorf("%d answers to others' questions", n)
	}
	for i := range 3 * maxPools {
		replies(Slot{fmt.Sprint("model-", i), pools.Both, "w", 0}, "o")
	}
	if books.asked > maxPools {
		t.Errorf("%d pools are looked at, of at most %d", books.asked, maxPools)
	}
}

// TestAQuestionIsInTheLastMessage: what has changed is known to the owner before it is asked, however many messages that takes.
func TestAQuestionIsInTheLastMessage(t *testing.T) {
	for _, n := range []int{0, 1, maxShares, maxShares + 1, 3 * maxShares} {
		own := NewOwn("a", 1)
		for i := range n {
			own.Set(Slot{"m", pools.Decode, fmt.Sprint("w", i), 0}, load.Share{Account: load.Account{Requests: 1}})
			own.Sent(Slot{"m", pools.Decode, "w", 0}, false, nil)
		}
		asked := Asked{Slot{"m", pools.Decode, "w", 0}, "b"}
		own.Ask(asked.Slot, asked.Owner)
		for data := own.Say(); data != nil; data = own.Say() {
			var m Message
			if err := m.read(data, map[string]string{}); err != nil {
				t.Fatal(err)
			}
			if (m.Asked != Asked{}) && m.Asked != asked {
				t.Errorf("asks %+v", m.Asked)
			}
			if m.Asked == asked && (len(own.next.Shares) > 0 || len(own.next.Sends) > 0) || m.Asked == (Asked{}) && len(own.next.Shares)+len(own.next.Sends) == 0 {
				t.Errorf("%d shares: the question is not in the last message", n)
			}
		}
	}
}

package replica

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// queryTime bounds the wait for the answers to a query.
	queryTime = 2 * time.Second
	// maxQuestion and MaxAnswer bound the two messages in bytes. NATS carries 1 MiB by default.
	maxQuestion = 4 << 10
	MaxAnswer   = 1<<20 - 4<<10
)

// errAnswer reports an empty answer: there is none, or one above MaxAnswer, which is not sent.
var errAnswer = errors.New("it has no answer below 1 MiB")

// Answer is another gateway's answer to a query, or why there is none. Its body is what the gateway sent: check it.
type Answer struct {
	Gateway string
	Body    []byte
	Err     error
}

// Query sends a question to every other gateway and returns their answers within queryTime. [Rooms.Answer] answers it
// there and must not query again.
func (m *Member) Query(ctx context.Context, question string) []Answer {
	peers := m.Peers()
	ctx, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	all := make([]Answer, len(peers))
	var waits sync.WaitGroup
	for i, p := range peers {
		waits.Go(func() {
			all[i].Gateway = p.Name
			msg, err := m.link.Request(ctx, &nats.Msg{Subject: m.cfg.queries(m.token(), token(p.Name)), Data: []byte(question)})
			switch {
			case err != nil:
				all[i].Err = err
			case len(msg.Data) == 0 || len(msg.Data) > MaxAnswer:
				all[i].Err = errAnswer
			default:
				all[i].Body = msg.Data
			}
		})
	}
	waits.Wait()
	return all
}

// respond answers another gateway's query.
func (m *Member) respond(msg *nats.Msg) {
	if m.rooms.Answer == nil || msg.Reply == "" || len(msg.Data) > maxQuestion {
		return
	}
	body := m.rooms.Answer(string(msg.Data))
	if len(body) > MaxAnswer {
		body = nil
	}
	if err := m.link.Publish(&nats.Msg{Subject: msg.Reply, Data: body}); err != nil {
		m.log.Debug("answer not sent to another gateway", "error", err)
	}
}

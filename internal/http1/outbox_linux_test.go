package http1

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestPostsLeaveAtTheEndOfATurn has many calls answered at one time, whose goroutines post: none of it leaves before
// the turn's end, all of it then.
func TestPostsLeaveAtTheEndOfATurn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := NewLoops()
	const calls, rounds = 4 * postFrom, 20
	var all sync.WaitGroup
	var mu sync.Mutex
	posted := 0
	fars := make([]*net.TCPConn, calls)
	for i := range fars {
		s, far := pair(t, l)
		fars[i] = far
		all.Go(func() {
			b := make([]byte, 1)
			for range rounds {
				if _, err := s.Read(b); !assert.NoError(t, err) {
					return
				}
				if s.Post([]byte{b[0], 'p'}) {
					mu.Lock()
					posted++
					mu.Unlock()
				} else {
					_, err := s.Write([]byte{b[0], 'w'})
					assert.NoError(t, err)
				}
			}
		})
	}
	for round := range byte(rounds) {
		for _, far := range fars {
			far.Write([]byte{round})
		}
		for _, far := range fars {
			var got [2]byte
			_, err := io.ReadFull(far, got[:])
			require.NoError(t, err)
			require.Equal(t, round, got[0])
		}
	}
	all.Wait()
	assert.NotZero(t, posted, "no turn was long enough to post")
	t.Logf("%d of %d were posted", posted, calls*rounds)
}

// ownTurns gives both ends of a connection whose loop begins no turn: the test does.
func ownTurns(t *testing.T) (Socket, *net.TCPConn, *outbox) {
	l := NewLoops()
	for _, p := range l.all {
		p.posts = false
	}
	s, far := pair(t, l)
	room := make(chan struct{})
	if s.OnWritable(func() { close(room) }) { // until the loop has looked
		<-room
	}
	return s, far, &s.(*socket).poller.outbox
}

// TestPostKeepsOrder posts and writes by turns from a turn that never ends by itself.
func TestPostKeepsOrder(t *testing.T) {
	s, far, o := ownTurns(t)
	require.False(t, s.Post([]byte("no")), "no turn has begun")
	o.begin()
	posts(t, s, "one ")
	posts(t, s, "two ")
	_, err := s.Write([]byte("three "))
	require.NoError(t, err)
	posts(t, s, "four")
	s.CloseWrite()
	reads(t, "one two three four", far)
	o.end()
	assert.False(t, s.Post(nil), "taken after the turn's end")
}

// TestPostWithoutRoom posts to a peer that does not read: what finds no room leaves when there is some, before what is
// written later, and takes no more posts meanwhile.
func TestPostWithoutRoom(t *testing.T) {
	s, far, o := ownTurns(t)
	inner := s.(*socket)
	require.NoError(t, unix.SetsockoptInt(inner.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<10))
	far.SetReadBuffer(4 << 10)
	var sent []byte
	rng := rand.NewChaCha8([32]byte{5})
	for full := false; !full; {
		o.begin()
		for range 2 { // the second may have to go behind what is left of the first
			p := make([]byte, 4<<10)
			rng.Read(p)
			if !s.Post(p) {
				full = true
				break
			}
			sent = append(sent, p...)
		}
		o.end()
	}
	inner.mu.Lock()
	left := len(inner.rest)
	inner.mu.Unlock()
	assert.NotZero(t, left, "nothing found no room")
	last := []byte("the last bytes")
	sent = append(sent, last...)
	go func() {
		s.Write(last)
		s.CloseWrite()
	}()
	got, err := io.ReadAll(far)
	assert.True(t, bytes.Equal(got, sent) && err == nil, "%d bytes of %d, %v", len(got), len(sent), err)
}

// TestPostToABrokenConnection has the reader learn that a post cannot be sent.
func TestPostToABrokenConnection(t *testing.T) {
	s, far, o := ownTurns(t)
	o.begin()
	posts(t, s, "to no one")
	far.SetLinger(0)
	far.Close()
	_, err := s.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	o.end()
	assert.False(t, s.Quiet(), "it is taken for sound")
}

// TestClosedSocketPostsNothing closes between the post and the end of the turn. The descriptor may be another's by
// then.
func TestClosedSocketPostsNothing(t *testing.T) {
	s, far, o := ownTurns(t)
	o.begin()
	posts(t, s, "dropped")
	s.Close()
	assert.False(t, s.Post([]byte("late")), "a closed socket takes a post")
	o.end()
	reads(t, "", far)
}

// TestPostsDoNotWaitForALongTurn has a turn go on for longer than posts wait: what was posted leaves with the next
// post.
func TestPostsDoNotWaitForALongTurn(t *testing.T) {
	s, far, o := ownTurns(t)
	o.begin()
	posts(t, s, "early ")
	o.mu.Lock()
	o.until = now() - 1
	o.mu.Unlock()
	posts(t, s, "late")
	reads(t, "early ", io.LimitReader(far, int64(len("early "))))
	o.mu.Lock()
	defer o.mu.Unlock()
	assert.Equal(t, "late", string(o.bytes), "what was posted last waits")
}

// TestOutboxIsBounded posts more than it holds, to a peer that reads nothing until no more is taken.
func TestOutboxIsBounded(t *testing.T) {
	s, far, o := ownTurns(t)
	o.begin()
	assert.False(t, s.Post(make([]byte, postedBytes+1)), "a long post was taken")
	p, taken := make([]byte, 8<<10), 0
	for s.Post(p) {
		taken += len(p)
		require.LessOrEqual(t, len(o.bytes), postedBytes, "bytes wait")
	}
	assert.Greater(t, taken, postedBytes, "bytes were taken")
	go func() {
		o.end()
		s.Write([]byte("!")) // behind what found no room
		s.CloseWrite()
	}()
	n, err := io.Copy(io.Discard, far)
	assert.NoError(t, err)
	assert.EqualValues(t, taken+1, n, "bytes came")
}

// TestEventsAreHandedOnByGroups checks the order of what comes at one time.
func TestEventsAreHandedOnByGroups(t *testing.T) {
	p := new(poller)
	var got []int
	for i, group := range []uint8{0, 2, 1, 0, 9, 1, 2} {
		s := new(socket)
		s.Group(group)
		s.OnReadable(func() { got = append(got, i) })
		p.ready = append(p.ready, ready{s, unix.EPOLLIN, uint8(s.group.Load())})
	}
	p.handOn()
	assert.Equal(t, []int{1, 4, 6, 2, 5, 0, 3}, got)
}

// reads checks what the far end gets until its end.
func reads(t *testing.T, want string, far io.Reader) {
	t.Helper()
	got, err := io.ReadAll(far)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

// posts has a socket take a post.
func posts(t *testing.T, s Socket, p string) {
	t.Helper()
	require.True(t, s.Post([]byte(p)), "%q is not taken", p)
}

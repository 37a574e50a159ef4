package handoff

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

func TestCleanupStackFreesOnceLastFirst(t *testing.T) {
	var got []string
	s := cleanupStack{abandon: func(kv *StagedKV) { got = append(got, kv.Producer) }}
	say := func(what string) held {
		if what == "kv" {
			return held{kv: &StagedKV{KV: prefill.KV{Producer: what}}}
		}
		return held{booking: placement.Booking{Lease: new(router.Lease), Done: func(error) { got = append(got, what) }}}
	}
	s.push(say("first"))
	d := s.push(say("decode"))
	s.push(held{kv: &StagedKV{taken: true}}) // decode has it: nothing is owed
	p := s.push(say("prefill"))
	s.free(p) // a failed prefill keeps decode's room
	s.free(p)
	require.Equal(t, []string{"prefill"}, got)
	s.push(say("kv"))
	s.free(d) // another decode worker: the KV stays
	s.push(say("decode 2"))
	s.release()
	s.release()
	assert.Equal(t, []string{"prefill", "decode", "decode 2", "kv", "first"}, got)
}

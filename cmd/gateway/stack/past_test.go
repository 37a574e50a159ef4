package stack

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/router/replica"
)

// What another gateway sends is data: garbage is an error by its name, and none is taken for an answer.
func TestForeignAnswers(t *testing.T) {
	for _, body := range []string{"", "garbage", `{"events":[`, `[]`, `{"events":{}}`, "\x00\xff", strings.Repeat("[", replica.MaxAnswer)} {
		var into observe.EventsReport
		assert.ErrorIs(t, read(replica.Answer{Gateway: "b", Body: []byte(body)}, &into), errForeign, "%.20q", body)
		assert.Empty(t, into.Events)
	}
	lost := errors.New("no responders")
	assert.ErrorIs(t, read(replica.Answer{Err: lost}, nil), lost)
}

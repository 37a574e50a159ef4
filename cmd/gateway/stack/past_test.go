package stack

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/cmd/gateway/console"
	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/router/replica"
)

// What another gateway sends is data: garbage is an error by its name, and none is taken for an answer.
func TestForeignAnswers(t *testing.T) {
	for _, body := range []string{"", "garbage", `{"events":[`, `[]`, `{"events":[{"message":"half"},5]}`, "\x00\xff",
		strings.Repeat("[", replica.MaxAnswer)} {
		of, other := read[observe.EventsReport](replica.Answer{Gateway: "b", Body: []byte(body)})
		assert.Equal(t, observe.OtherGateway{Gateway: "b", Error: errForeign.Error()}, other, "%.20q", body)
		assert.Empty(t, of.Events)
	}
	lost := errors.New("no responders")
	_, other := read[console.RequestsReport](replica.Answer{Err: lost})
	assert.Equal(t, lost.Error(), other.Error)
}

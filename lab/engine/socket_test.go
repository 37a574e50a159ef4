package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/kv/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each engine binds what it binds, and connects to the rest, where no subscriber finds it.
func TestWhatEnginesBind(t *testing.T) {
	for _, c := range []struct {
		dialect  wire.Dialect
		endpoint string
		binds    bool
	}{
		{wire.VLLM, "tcp://*:0", true}, {wire.VLLM, "tcp://[::]:0", true}, {wire.VLLM, "tcp://127.0.0.1:1", false},
		{wire.VLLM, "tcp://0.0.0.0:1", false},
		{wire.VLLMArrays, "tcp://0.0.0.0:1", false}, {wire.VLLM, "tcp://gpu-1:1", false},
		{wire.SGLang, "tcp://*:0", true}, {wire.SGLang, "tcp://0.0.0.0:0", true}, {wire.SGLangFirst, "tcp://0.0.0.0:0", true},
		{wire.SGLang, "tcp://127.0.0.1:1", false},
		{wire.TensorRT, "tcp://*:0", true},
	} {
		p, err := NewPublisher(PublisherConfig{Endpoint: c.endpoint, Dialect: c.dialect})
		require.NoError(t, err)
		if at, _ := p.Ports(); at != 0 != c.binds {
			t.Errorf("%v %s is bound at %d, want bound: %v", c.dialect, c.endpoint, at, c.binds)
		}
		require.NoError(t, p.Close())
	}
}

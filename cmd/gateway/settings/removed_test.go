package settings

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A setting of an earlier version is refused with what to do without it, wherever it stands; one that another program may have been
// given as a DYN_ variable is not.
func TestRemovedSettings(t *testing.T) {
	for name, advice := range removed {
		for where, resolve := range map[string]func() error{
			"flag": func() error {
				_, _, err := gatewaySet().Resolve([]string{"--" + name, "1"}, nil, files{}.read)
				return err
			},
			"variable": func() error {
				_, _, err := gatewaySet().Resolve(nil, []string{tandemPrefix + envSuffix(name) + "=1"}, files{}.read)
				return err
			},
			"key": func() error {
				_, _, err := gatewaySet().Resolve([]string{"--config", "f"}, nil, files{"f": name + ": 1"}.read)
				return err
			},
			"help": func() error { return gatewaySet().Usage(t.Output(), Manual{}, Asked{Topic: name}, 80) },
		} {
			assert.ErrorContains(t, resolve(), "this setting was removed: "+advice, "%s of %s", where, name)
		}
	}
	_, _, err := gatewaySet().Resolve(nil, []string{dynPrefix + "PREFILL_HEDGE=1"}, files{}.read)
	assert.NoError(t, err)
}

package setting

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A setting of an earlier version is refused with what to do without it, wherever it stands; one that another program
// may have been given as a DYN_ variable is not.
func TestRemovedSettings(t *testing.T) {
	resolve := func(args, environ []string, file string) error {
		_, _, err := gatewaySet().Resolve(args, environ, files{"f": file}.read)
		return err
	}
	for line := range strings.Lines(removed) {
		name, advice, _ := strings.Cut(strings.TrimSpace(line), ": ")
		for where, err := range map[string]error{
			"flag":     resolve([]string{"--" + name, "1"}, nil, ""),
			"variable": resolve(nil, []string{tandemPrefix + envSuffix(name) + "=1"}, ""),
			"key":      resolve([]string{"--config", "f"}, nil, name+": 1"),
			"help":     gatewaySet().Usage(t.Output(), Manual{}, Asked{Topic: name}, 80),
		} {
			assert.ErrorContains(t, err, "this setting was removed: "+advice, "%s of %s", where, name)
		}
	}
	assert.NoError(t, resolve(nil, []string{dynPrefix + "PREFILL_HEDGE=1"}, ""))
}

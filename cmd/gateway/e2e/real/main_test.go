package real

import (
	"fmt"
	"os"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
)

// TestMain makes the process a server where it is the child of a test.
func TestMain(m *testing.M) {
	if what := os.Getenv(asServer); what != "" {
		if err := serveAs(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(fleet.Main(m))
}

package routing

import (
	"os"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleettest"
)

func TestMain(m *testing.M) { os.Exit(fleettest.Main(m)) }

package clients

import (
	"os"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
)

func TestMain(m *testing.M) { os.Exit(fleet.Main(m)) }

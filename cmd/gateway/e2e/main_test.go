package e2e

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/gofiber/fiber/v2"
)

// relayed is the gateways' --relay: the tests are the same for both.
var relayed = flag.String("relay", "auto", "loop or goroutine: who moves the chunks of answers")

// TestMain has fasthttp start its clock, a goroutine that never ends, before
// the first bubble, which it must not belong to. As a child it is a server.
func TestMain(m *testing.M) {
	if what := os.Getenv(asServer); what != "" {
		if err := serveAs(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	if _, err := app.Test(httptest.NewRequest(http.MethodGet, "/", nil)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

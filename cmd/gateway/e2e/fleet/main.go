package fleet

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/gofiber/fiber/v2"
)

// Relayed is the gateways' --relay: the tests are the same for both.
var Relayed = flag.String("relay", "auto", "loop or goroutine: who moves the chunks of answers")

// Main is TestMain of the packages whose tests use fleets. It has fasthttp start its clock, a goroutine that never ends,
// before the first bubble, which it must not belong to.
func Main(m *testing.M) (status int) {
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	if _, err := app.Test(httptest.NewRequest(http.MethodGet, "/", nil)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

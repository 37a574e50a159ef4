package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/gofiber/fiber/v2"
)

// TestMain has fasthttp start its clock, a goroutine that never ends, before
// the first bubble, which it must not belong to.
func TestMain(m *testing.M) {
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	if _, err := app.Test(httptest.NewRequest(http.MethodGet, "/", nil)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

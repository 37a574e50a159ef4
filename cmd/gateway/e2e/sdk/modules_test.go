//go:build modules

package sdk

import (
	_ "github.com/openai/openai-go"    // whose versions are go.mod's, for releases_test.go
	_ "github.com/openai/openai-go/v2" // "
)

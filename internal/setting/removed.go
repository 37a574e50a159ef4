package setting

import (
	_ "embed"
	"fmt"
	"strings"
)

// removed lists the settings of earlier versions that are no longer there, one a line: its name and what to do
// without it.
//
//go:embed removed.txt
var removed string

// wasRemoved is the error for the name of a setting of an earlier version, nil for any other name.
func wasRemoved(name string) error {
	_, rest, found := strings.Cut("\n"+removed, "\n"+strings.TrimPrefix(name, "no-")+": ")
	if !found {
		return nil
	}
	advice, _, _ := strings.Cut(rest, "\n")
	return fmt.Errorf("this setting was removed: %s", advice)
}

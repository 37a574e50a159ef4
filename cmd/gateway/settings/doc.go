// Package settings is the one table of everything that can be set about a
// gateway, and the rules by which a value is found for it.
//
// Each row of the table, a [Setting], is at once a flag (--router-mode), two
// environment variables (TANDEM_ROUTER_MODE and DYN_ROUTER_MODE, the name that
// deployments of Dynamo already use) and a YAML key (router-mode or
// router_mode). Where several are set, the first of these wins:
//
//	flag > TANDEM_ variable > DYN_ variable > file named by --config > default
//
// A [Set] is the rows that one command takes. It resolves arguments, an
// environment and a file into a [Resolved], which fills the typed structs that
// the rest of the command reads, and prints every value with where it came
// from, in a form that --config takes back.
//
// What is set is checked even where something else overrides it, so that a
// mistake shows on the day it is made; the one exception is a DYN_ variable
// that is overridden, which may have been meant for another program. Names
// nobody knows are refused with the nearest that somebody does, except DYN_
// variables, which are not all ours.
//
// The package imports nothing else of this module: what a setting may be
// called upon to name (a routing policy, a queue order) is handed in as
// [Choices].
package settings

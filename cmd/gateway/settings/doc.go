// Package settings finds the value of each setting of a command: from its flags, the environment, a file and
// defaults. What a setting is stands in the tags of the Configs that a command's struct is made of, see
// internal/setting; the resolved struct is that configuration.
//
// Each setting is a flag (--router-mode), two environment variables (TANDEM_ROUTER_MODE, and DYN_ROUTER_MODE, the
// name that deployments of Dynamo already use) and a YAML key (router-mode or router_mode). The first of these wins:
//
//	flag > TANDEM_ variable > DYN_ variable > file named by --config > default
//
// A [Set] is the settings of one command. It resolves arguments, an environment and a file into its struct and a
// [Resolved], which prints every value with where it came from, in a form that --config takes back.
//
// A value is checked even where another one overrides it, so that a mistake shows on the day it is made; the one
// exception is a DYN_ variable that is overridden, which may have been meant for another program. Unknown names are
// refused with the nearest known one, except DYN_ variables, which are not all ours.
//
// Flags are not read by a library: pflag and kong stop at the first mistake, keep no source of a value, and kong wants
// a tag on each field of a Config that is no setting.
package settings

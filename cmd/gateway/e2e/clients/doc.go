// Package openaiclient tests the gateway with OpenAI's official client for Go.
// It is a package of its own because that client takes long to compile.
package clients

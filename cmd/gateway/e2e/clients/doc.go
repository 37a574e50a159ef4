// Package clients tests the gateway with OpenAI's official client for Go, and with clients that behave badly.
package clients

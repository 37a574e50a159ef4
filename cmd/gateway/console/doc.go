// Package console is the gateway's live page: the fleet and the requests in it as they are now, the last quarter of an
// hour, the way of single requests, what is cached where, who waits, and the settings in force. Everything is kept in
// memory of a fixed size, and nothing of a prompt or an answer is. DESIGN.md has the reasons.
package console

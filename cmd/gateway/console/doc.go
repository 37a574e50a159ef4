// Package console is the gateway's live page: the fleet and its requests, the last quarter of an hour, single
// requests, cached prefixes, the queue, and the settings in force. It keeps memory of fixed size, and no text of
// prompts or answers. See DESIGN.md.
package console

// Package zmq is how engines publish KV events by themselves: over ZeroMQ, numbered, with a socket that replays the last
// messages. It has the engine's side ([Publisher]) and what a follower needs ([Address], [Replay]).
package zmq

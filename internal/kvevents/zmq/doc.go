// Package zmq is how engines publish KV events by themselves: over ZeroMQ, numbered, with a socket that replays the last
// messages. It has what a follower needs: [Address], [ReadFrames], [Replay].
package zmq

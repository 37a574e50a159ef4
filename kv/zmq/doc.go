// Package zmq receives KV events over ZeroMQ as engines publish them: numbered, with a socket that replays the last messages
// ([Address], [ReadFrames], [Replay]). It implements the part of ZMTP 3.1 that this needs: TCP, the NULL mechanism, PUB, SUB, DEALER
// and ROUTER, and peers that speak 3.0.
//
// It is no library, because a router must survive any peer: no length that a peer claims is allocated before its bytes have come,
// a message that is too big is skipped and costs neither memory nor the connection, every queue is bounded, and every goroutine
// ends with its context.
//
// [Sub] follows one publisher and reconnects for as long as it runs; a [Hub] accepts publishers that connect. [Dial] and [Serve]
// are the two ends of any other conversation.
package zmq

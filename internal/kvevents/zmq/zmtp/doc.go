// Package zmtp speaks the part of ZeroMQ's wire protocol that KV events need: ZMTP 3.1 over TCP with the NULL mechanism,
// as PUB, SUB, DEALER and ROUTER. Peers that speak 3.0 are understood as well.
//
// It is here, and no library, because a router must survive whatever a peer sends: no length that a peer claims is
// allocated before its bytes have come, a message that is too big is skipped and costs neither memory nor the connection,
// every queue is bounded, and every goroutine ends with the context it was started under.
//
// [Sub] follows one publisher and connects again for as long as it runs; a [Hub] awaits publishers that connect. [Dial] and
// [Serve] are the two ends of any other conversation.
package zmtp

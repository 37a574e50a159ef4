// Package replica has several gateways choose among the same workers as one would.
//
// Each gateway publishes its bookings per worker rank: its own share ([load.Share]) of every account, always as the
// full value, never as a difference. The load of a worker is the sum of the shares. So a later value makes up for a
// lost one, duplicates are harmless, and the order between gateways does not matter.
//
// It also publishes the heads of its queues ([Head]), in full at each change and again while they wait. They may be
// lost and expire quickly.
//
// [Local] encodes this gateway's messages, [Peers] applies those of the others. Both are cores: they read no clock and
// hold no lock. [Member] is their shell, over NATS.
package replica

// Package replica has several gateways choose among the same workers as one would.
//
// Each gateway says what it has booked: of every account, a worker's rank in a pool, its own share ([load.Share]). A share is
// said whole whenever it changes, never as a difference, and by the gateway alone whose share it is. What a gateway knows of a
// worker is the sum of the shares. So any later word of a share makes up for one that was lost, a share heard twice counts once,
// and the order between gateways does not matter.
//
// It says as well which requests with a strict priority are the first to wait ([Head]), whole at each change and again while they wait: a word of
// that may be lost, and counts for a moment only.
//
// [Own] makes a gateway's messages, [Peers] hears those of the others. Both are cores: they read no clock and hold no lock, and
// package member connects them over NATS.
package replica

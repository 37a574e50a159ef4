// Package e2e tests the whole gateway: every room, real sockets, simulated
// engines with real schedulers and caches. It holds no code of the product.
package e2e

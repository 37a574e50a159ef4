// Package operations tests what operators see, in front of a whole fleet: metrics, traces, the console over plain HTTP
// and in a real browser where -chromium names one, and the lab's reports.
//
//	go test ./cmd/gateway/e2e/operations -run 'Browser|Pages' -chromium /usr/bin/chromium
//	go test ./cmd/gateway/e2e/operations -run 'Browser|Pages' -chromium /usr/bin/chromium -update   # the screenshots in docs
package operations

// Package viewer tests the console as its viewers see it, in front of a whole fleet, and the lab's reports: over plain HTTP,
// and in a real browser where -chromium names one. It is a package of its own because the browser's protocol takes long to
// compile.
//
//	go test ./cmd/gateway/e2e/operations -chromium /usr/bin/chromium
//	go test ./cmd/gateway/e2e/operations -chromium /usr/bin/chromium -update   # the screenshots in docs
package operations

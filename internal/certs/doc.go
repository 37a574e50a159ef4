// Package certs keeps the certificates and CA bundles of files up to date. A [Store] reads each [Source]'s files again
// every ten seconds and compares their contents, not their times: Kubernetes swaps a link and leaves both alone. Files
// that cannot be used change nothing: what was read before stays in force, and the log says why, once.
package certs

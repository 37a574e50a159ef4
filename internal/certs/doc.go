// Package certs keeps certificates and CA bundles up to date with their files. A [Store] reads each [Source]'s files
// every ten seconds and compares their contents, not their times: Kubernetes swaps a link and leaves both alone.
// Unusable files change nothing: the last good contents stay in force, and the log reports the error once.
package certs

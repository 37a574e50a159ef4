// Package helm tests the chart and the kustomize folders with Helm's and kustomize's own libraries. It is a module of
// its own, which keeps both out of the product.
package helm

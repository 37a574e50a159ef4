# `make help` lists the targets. Everything here is a plain go command or a
# script in .ci, so that nothing needs make.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME ?= 10s
BENCH ?= .
BENCHTIME ?= 1s

.DEFAULT_GOAL := build
.PHONY: build test race lint fuzz bench bench-wire smoke compose recipes ci clean help

build: ## bin/gateway: one static binary
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/gateway ./cmd/gateway

test: ## every test
	go test ./...

race: ## every test under the race detector
	go test -race ./...

lint: ## gofmt, go vet, staticcheck
	.ci/lint

fuzz: ## every fuzz target for FUZZTIME
	.ci/fuzz $(FUZZTIME)

bench: ## the benchmarks that match BENCH, for BENCHTIME each
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem ./...

bench-wire: ## the gateway against a direct client and nginx, into docs/performance.md
	go run ./bench -write-docs

smoke: ## a fleet of our own and one request of each kind
	go run ./cmd/gateway dev --smoke

compose: ## a fleet in containers, broken in every way that there is
	go run ./deploy/compose/run

recipes: build ## simulate bench/recipes and write their results; reads bench/traces
	mkdir -p bench/recipes/results
	cd bench/recipes && for r in r*.yaml; do ../../bin/gateway simulate $$r --json results/$${r%.yaml}.json || exit 1; done

ci: ## what a change has to pass
	.ci/run

clean: ## take away what was built
	rm -rf bin
	find . -name '*.test' -type f -delete

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

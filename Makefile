# `make help` lists the targets. Everything here is a plain go command or a
# script in .ci; only the Dockerfile wants what `make build` leaves in bin.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
FUZZTIME ?= 10m
FUZZFROM ?= origin/main
BENCH ?= .
BENCHTIME ?= 1s
SOAK ?= 30m
ENGINE ?= vllm,sglang
DIST ?= dist

.DEFAULT_GOAL := build
.PHONY: build install release release-check image test race lint fuzz bench bench-wire smoke screenshots scenarios incidents faults soak recipes try-vllm try-sglang try-vllm-routing conformance ci clean help

# How a binary is built that runs anywhere, and knows what it was built from.
RELEASE = -trimpath -buildvcs=auto -ldflags '-s -w $(if $(VERSION),-X main.version=$(VERSION))'
# Where systems keep the CA roots that they trust; the first that is there.
ROOTS = $(firstword $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem))
IMAGE ?= tandem-gateway:local

build: ## bin/gateway: one static binary; with CA roots and a data folder beside it, for an image
	CGO_ENABLED=0 go build $(RELEASE) -o bin/gateway ./cmd/gateway
	@mkdir -p bin/data
	@cat $(or $(ROOTS),/dev/null) > bin/ca-certificates.crt
	@test -s bin/ca-certificates.crt || echo "no CA roots on this machine: an image made here trusts no https engine" >&2

install: ## gateway into GOBIN, or Go's own folder for binaries
	CGO_ENABLED=0 go install $(RELEASE) ./cmd/gateway
	@echo "installed $$(go list -f '{{.Target}}' ./cmd/gateway)"

release: ## dist: archives for linux/amd64 and arm64 with binary and unit; and SHA256SUMS
	go run ./deploy/release -out $(DIST)

release-check: ## the same, built twice in two folders, the second time from nothing, and compared byte for byte
	go run ./deploy/release -out $(DIST) -check

image: export GOOS = linux
image: build ## the image IMAGE (tandem-gateway:local) around that binary; no registry is asked
	docker build --tag $(IMAGE) .

test: ## every test
	go test ./...

race: ## every test under the race detector
	go test -race ./...

lint: ## gofmt, go vet, staticcheck, vale
	.ci/lint

fuzz: ## the fuzz targets for FUZZTIME (10m) each: those of packages that differ from FUZZFROM (origin/main), or all with FUZZFROM=
	.ci/fuzz $(FUZZTIME) $(FUZZFROM)

bench: ## the benchmarks that match BENCH, for BENCHTIME each
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem ./...

bench-wire: ## the gateway against a direct client, nginx, HAProxy and a bare minimum
	go run ./bench

smoke: ## a fleet of our own and one request of each kind
	go run ./cmd/gateway dev --smoke

screenshots: ## the console's pictures in docs, and its tests in a browser; wants chromium
	go test -count 1 ./cmd/gateway/e2e/operations -run Browser -chromium "$$(command -v chromium)" -update

scenarios: ## a fleet in containers, broken in every way that there is
	go run ./deploy/compose/run

incidents: ## ten incidents at a live fleet: the first problem named is the cause, and its runbook has the remedy
	go test -count 1 ./cmd/gateway/e2e/operations -run TestIncidents -v

faults: ## every fault and every pair in virtual time, then deaths of real processes, into docs/faults.md
	go test ./cmd/gateway/e2e/failures -count 1 -timeout 30m -run TestFaultsInVirtualTime -faults-alone 1500 -faults-paired 760 -update
	go test ./cmd/gateway -run '^$$' -bench '^BenchmarkFaults$$' -benchtime 1x -timeout 30m -update

soak: ## a gateway under load, faults and deaths for SOAK (30m): its plot and figures into docs/faults.md
	go test ./cmd/gateway -run '^$$' -bench '^BenchmarkSoak$$' -benchtime 1x -v -timeout 0 -soak $(SOAK) -update

recipes: build ## simulate every plan of bench/recipes and write results next to them, the better part of an hour; reads bench/traces
	@mkdir -p bench/recipes/results
	@cd bench/recipes && set -- *.yaml && n=0 && for plan; do \
		n=$$((n+1)); name=$${plan%.yaml}; echo "$$n of $$# recipes: $$name" >&2; \
		../../bin/gateway simulate $$plan --json results/$$name.json > results/$$name.txt || exit 1; \
	done

TRY = go test -tags engines ./cmd/gateway/e2e/conformance -run '^$$' -benchtime 1x -v -timeout 0 \
	-tokenizer "$(CURDIR)/internal/tokens/sim_tokenizer.json"

try-vllm: ## the gateway before a real vLLM pair on this machine's CPU, and its console; docs/real-engines.md
	$(TRY) -bench Try -engine vllm

try-sglang: ## the same before SGLang
	$(TRY) -bench Try -engine sglang

try-vllm-routing: ## compare routing modes on two real vLLM workers
	$(TRY) -bench Modes -engine vllm

conformance: ## the gateway against real engines (ENGINE=vllm,sglang), request by request; RECORD=-record stores what they answer
	go test -tags engines -count=1 -v -timeout 60m ./cmd/gateway/e2e/conformance -run TestRealEngines -engine=$(ENGINE) $(RECORD)

ci: ## what a change has to pass
	.ci/run

clean: ## take away what was built
	rm -rf bin dist
	find . -name '*.test' -type f -delete

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Strict shell: a failing command, an unset variable or a broken pipe ends a recipe.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --warn-undefined-variables
.DEFAULT_GOAL := help

GO       ?= go
BIN      := bin
# The kernel objects and the daemons need no C library.
export CGO_ENABLED := 0
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOBUILD  := $(GO) build -trimpath -ldflags '-X main.version=$(VERSION)'
HOLD     ?=

## help: list the targets
.PHONY: help
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST) | column -t -s ':'

## build: build ctl and dpud into bin/
.PHONY: build
build:
	@mkdir -p $(BIN)
	$(GOBUILD) -o $(BIN)/ ./cmd/ctl ./cmd/dpud

## demo: build, run a rack in network namespaces and show it at work; HOLD=1 leaves it running
.PHONY: demo
demo: deps-run build
	$(GO) build -trimpath -o $(BIN)/demo ./test/demo
	HOLD='$(HOLD)' $(BIN)/demo

## test: run all tests; as root none is skipped
.PHONY: test
test: deps build
	$(GO) test -timeout 15m ./...
	CGO_ENABLED=1 $(GO) test -race -timeout 10m ./pkg/gossip ./pkg/controller ./pkg/store ./pkg/wire ./internal/dpud/... ./internal/cli/...

## test-vm: run the kernel tests and the end-to-end test as PID 1 under qemu on Debian's kernels
.PHONY: test-vm
test-vm: deps build
	$(GO) run ./test/vm

## bench: measure, print a table and write docs/benchmarks.md
.PHONY: bench
bench: deps-run build
	$(GO) run ./test/bench

## check: what CI runs: generated code, lint, cross-builds, all tests, all kernels
.PHONY: check
check: deps generated lint cross test test-vm

## nightly: longer runs of what check does
.PHONY: nightly
nightly: check
	$(GO) test -count=20 -timeout 60m -run 'Walk' ./internal/explore
	$(GO) test -fuzz FuzzParse -fuzztime 5m -fuzzminimizetime 20x ./pkg/site

## generate: generate the kernel objects (clang-19) and the API (protoc)
.PHONY: generate
generate:
	$(GO) generate ./pkg/maps
	./api/generate.sh

## generated: fail if what is committed is not what generate makes
.PHONY: generated
generated: deps
	./scripts/generated.sh

## lint: formatting, vet, staticcheck, dead code, C and shell
.PHONY: lint
lint: deps
	./scripts/lint.sh

## cross: build for amd64 and arm64
.PHONY: cross
cross:
	GOOS=linux GOARCH=amd64 $(GO) build -o /dev/null ./cmd/ctl && GOOS=linux GOARCH=amd64 $(GO) build -o /dev/null ./cmd/dpud
	GOOS=linux GOARCH=arm64 $(GO) build -o /dev/null ./cmd/ctl && GOOS=linux GOARCH=arm64 $(GO) build -o /dev/null ./cmd/dpud

## fmt: format Go and C
.PHONY: fmt
fmt:
	$(GO) tool gofumpt -l -w $$(git ls-files '*.go' | grep -v -e '\.pb\.go$$' -e '\.connect\.go$$' -e '_bpfel\.go$$')
	clang-format-19 -i bpf/*.c bpf/*.h

## deps: install from Debian what building, testing and linting need
.PHONY: deps
deps:
	./scripts/deps.sh build-essential clang-19 llvm-19 clang-format-19 libbpf-dev linux-libc-dev \
		protobuf-compiler libprotobuf-dev bpftool qemu-system-x86 cpio kmod shellcheck

# What the demo and the benchmark need besides Go and root.
.PHONY: deps-run
deps-run:
	./scripts/deps.sh bpftool iproute2

## clean: remove what was built
.PHONY: clean
clean:
	rm -rf $(BIN)

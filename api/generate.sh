#!/usr/bin/env bash
# Generates pkg/api from the protocol definitions. Needs protoc (Debian: protobuf-compiler); the plugins are Go tools of this module.
set -euo pipefail
cd "$(dirname "$0")"
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin" google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go
PATH="$bin:$PATH" protoc -I . --go_out=.. --go_opt=module=dpud --connect-go_out=.. --connect-go_opt=module=dpud dpud/v1/*.proto

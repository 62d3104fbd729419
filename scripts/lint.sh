#!/usr/bin/env bash
# Every check of source text. All of them run; the first failure decides the exit code.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

status=0
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
# Any output of a check is a finding; what it says on standard error, downloads for example, is only shown with one.
check() {
	local name=$1
	shift
	local out
	if ! out=$("$@" 2>"$errors") || [[ -n $out ]]; then
		printf '%s:\n%s\n' "$name" "$out" >&2
		cat "$errors" >&2
		status=1
	fi
}

mapfile -t go_files < <(git ls-files '*.go' | grep -v -e '\.pb\.go$' -e '\.connect\.go$' -e '_bpfel\.go$')
mapfile -t c_files < <(git ls-files 'bpf/*.c' 'bpf/*.h')
mapfile -t sh_files < <(git ls-files '*.sh' .ci/run)

check gofumpt go tool gofumpt -l "${go_files[@]}"
check vet go vet ./...
check staticcheck go tool staticcheck ./...
check deadcode go tool deadcode -test ./...
check clang-format clang-format-19 --dry-run -Werror "${c_files[@]}"
# shellcheck disable=SC2317 # called through check
metrics() {
	local name
	grep -rhoE --include='*.go' --exclude='*_test.go' '"dpud_[a-z_]+_[a-z_]+"' pkg internal | tr -d '"' | sort -u | while read -r name; do
		case $name in dpud_ingress | dpud_egress) continue ;; esac
		grep -q "\`$name\`" docs/operations.md || echo "$name is not in docs/operations.md"
	done
}
check metrics metrics
check shellcheck shellcheck "${sh_files[@]}"
exit "$status"

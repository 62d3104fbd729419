#!/usr/bin/env bash
# Installs Debian packages that are missing. Asks nothing when all are there.
set -euo pipefail

missing=()
for package in "$@"; do
	if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
		missing+=("$package")
	fi
done
((${#missing[@]})) || exit 0

if ! command -v apt-get >/dev/null; then
	echo "missing: ${missing[*]}; this is no Debian, so install their like by hand" >&2
	exit 1
fi
run=()
if ((EUID)); then
	run=(sudo)
fi
echo "installing from Debian: ${missing[*]}"
"${run[@]}" apt-get update -qq
"${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null

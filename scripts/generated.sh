#!/usr/bin/env bash
# Fails if the committed kernel objects or API are not what their sources generate.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z --cached --others --exclude-standard |
	tar -cf - --null -T - --ignore-failed-read 2>/dev/null | tar -xf - -C "$work"
(cd "$work" && go generate ./pkg/maps && ./api/generate.sh) >/dev/null

status=0
for dir in pkg/maps pkg/api; do
	diff -rq "$dir" "$work/$dir" || status=1
done
if ((status)); then
	echo "generated files differ from their sources: run 'make generate' and commit" >&2
fi
exit "$status"

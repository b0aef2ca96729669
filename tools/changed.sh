#!/usr/bin/env bash
# tools/changed.sh [--last] [PATHSPEC...]: files that differ from origin/main, those not yet committed too.
# Where nothing does (CI), those that the commits of the last day before HEAD's changed; --last: HEAD alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
base=$(git merge-base origin/main HEAD 2>/dev/null || git rev-parse HEAD)
last=
if [ "${1:-}" = --last ]; then last=1; shift; fi
if git diff --quiet "$base" -- && [ -n "$last" ]; then
  base=$(git rev-parse -q --verify HEAD~1 || git hash-object -t tree /dev/null)
elif git diff --quiet "$base" --; then
  base=$(git rev-list -1 --before="$(($(git log -1 --format=%ct) - 86400))" HEAD)
  # A history that is younger, or not all here: all files.
  [ -n "$base" ] || base=$(git hash-object -t tree /dev/null)
fi
git diff --name-only --diff-filter=d "$base" -- "$@"
git ls-files --others --exclude-standard -- "$@"

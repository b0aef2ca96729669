#!/usr/bin/env bash
# tools/changed.sh [PATHSPEC...]: files that differ from origin/main, those not yet committed too. Where
# nothing does (CI), those that the commits of the last day before HEAD's changed. The newest change comes first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
base=$(git merge-base origin/main HEAD 2>/dev/null || git rev-parse HEAD)
if ! git diff --quiet "$base" -- || [ -n "$(git status --porcelain)" ]; then
  { git diff --name-only --diff-filter=d "$base" -- "$@"; git ls-files --others --exclude-standard -- "$@"; } |
    xargs -rd '\n' ls -td
  exit
fi
base=$(git rev-list -1 --before="$(($(git log -1 --format=%ct) - 86400))" HEAD)
# A history that is younger, or not all here: all files.
if [ -z "$base" ]; then git ls-files -- "$@"; exit; fi
git log --first-parent -m --name-only --format= "$base..HEAD" -- "$@" | awk '!seen[$0]++' |
  while IFS= read -r file; do [ ! -e "$file" ] || printf '%s\n' "$file"; done

#!/usr/bin/env bash
# tools/fuzz.sh NAME [SECONDS]: runs fuzzer NAME of build/fuzz from its committed corpus. New inputs
# stay in build/fuzz/corpus; a crash is written to build/fuzz/crashes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/skip.sh
name=$1 seconds=${2:-60}
binary=$(find build/fuzz -type f -name "$name" -perm -u+x 2>/dev/null | head -n 1 || true)
[ -n "$binary" ] || skip "build/fuzz has no $name (./dev test slow builds it)"
corpus=build/fuzz/corpus/$name
mkdir -p "$corpus" build/fuzz/crashes
exec "$binary" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
  -artifact_prefix=build/fuzz/crashes/ "$corpus" "fuzz/corpus/${name%_fuzz}"

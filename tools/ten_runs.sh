#!/usr/bin/env bash
# tools/ten_runs.sh [NAME...]: runs `./dev test NAME...` ten times (RUNS=N: N times): one of ten runs beside
# `stress-ng --vm`, which it installs where it is missing, the odd ones beside two busy loops. Prints a line for each
# run, which tests failed, and which failed beside others and passed alone; what a run printed stays in build/runs.
# Exits 1 where a run failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ "${RUNS:-10}" -lt 10 ] || command -v stress-ng >/dev/null || (. ./dev help >/dev/null && install ten_runs)
beside=()
stop_beside() {
  [ ${#beside[@]} = 0 ] || kill "${beside[@]}" 2>/dev/null || true
  beside=()
}
trap stop_beside EXIT
mkdir -p build/runs
num_failed=0 num_by_chance=0
for ((run = 1; run <= ${RUNS:-10}; ++run)); do
  what=alone log=build/runs/$run.log began=$SECONDS status=0
  if ((run % 10 == 0)); then
    what="beside stress-ng --vm"
    stress-ng --quiet --vm 2 --vm-bytes 25% & beside+=($!)
  elif ((run % 2)); then
    what="beside two busy loops"
    for _ in 1 2; do
      while :; do :; done & beside+=($!)
    done
  fi
  ./dev test "$@" </dev/null >"$log" 2>&1 || status=$?
  stop_beside
  took=$((SECONDS - began))
  printf 'run %d, %s: %d:%02d, %s\n' "$run" "$what" $((took / 60)) $((took % 60)) \
    "$(grep '^passed [0-9]' "$log" || echo "no test ran ($log says why)")"
  [ "$status" = 0 ] || num_failed=$((num_failed + 1))
  awk '/^[^ ]/ { inside = /^failed:$/; next } inside' "$log"
  by_chance=$(awk '/^[^ ]/ { inside = /^failed beside others, passed alone:$/; next } inside' "$log")
  [ -z "$by_chance" ] || printf ' failed beside others, passed alone:\n%s\n' "$by_chance"
  num_by_chance=$((num_by_chance + $(grep -c . <<<"$by_chance" || true)))
done
echo "runs that failed: $num_failed of ${RUNS:-10}; tests that failed beside others and passed alone: $num_by_chance"
[ "$num_failed" = 0 ]

#!/bin/sh
# tools/python_test.sh SCRIPT ARGS...: with the tests' own Python; exit 77 (skipped) where it, or
# what the test needs, is missing. In CI, where nothing may be missing, that is a failure.
python=$(dirname "$0")/../.venv/bin/python
missing() {
  [ -z "$CI" ] || { echo "a test is skipped, but in CI (CI=$CI) nothing may be missing"; exit 1; }
  exit 77
}
[ -x "$python" ] || { echo "skipped: needs .venv (./dev setup)"; missing; }
"$python" "$@"
status=$?
[ "$status" != 77 ] || missing
exit "$status"

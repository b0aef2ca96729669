#!/bin/sh
# tools/python_test.sh SCRIPT ARGS...: with the tests' own Python; exit 77 (skipped) where it, or
# what the test needs, is missing. In CI, where nothing may be missing, that is a failure.
here=$(dirname "$0")
. "$here/skip.sh"
python=$here/../.venv/bin/python
[ -x "$python" ] || skip "needs .venv (./dev setup)"
"$python" "$here/../tests/run.py" "$@"
status=$?
[ "$status" != 77 ] || skip "$1 (why: above)"
exit "$status"

#!/bin/sh
# tools/python_test.sh SCRIPT ARGS...: with the tests' own Python; exit 77 (skipped) without it.
python=$(dirname "$0")/../.venv/bin/python
[ -x "$python" ] || { echo "skipped: needs .venv (./dev setup)"; exit 77; }
exec "$python" "$@"

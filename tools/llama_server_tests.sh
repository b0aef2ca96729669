#!/bin/sh
# tools/llama_server_tests.sh [PYTEST ARGS...]: llama-server's own tests, against build/release/kvasir. Says what
# passed and why the rest failed; fails where tests/data/llama_server_tests.txt says otherwise. Tests that the suite
# marks as slow are left out: they need models of several GB from a hub.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
work=$root/build/llama_server_tests
. "$root/tools/skip.sh"
[ -x "$python" ] || skip "needs .venv (./dev setup)"
export KVASIR_ROOT="$root"
export KVASIR_SHARED="${KVASIR_SHARED:-$root/../shared}"
export KVASIR_BINARY="${KVASIR_BINARY:-$root/build/release/kvasir}"
mkdir -p "$work"

# The suite stands in the sources of a package of Python.
if [ ! -e "$work/llama.cpp/tools/server/tests/conftest.py" ]; then
  "$python" -m pip download -q --no-deps --no-binary llama-cpp-python -d "$work" \
    llama-cpp-python==0.3.36 || ls "$work"/llama_cpp_python-0.3.36.tar.gz >/dev/null 2>&1 ||
    skip "llama-cpp-python 0.3.36 cannot be downloaded"
  tar -xzf "$work"/llama_cpp_python-0.3.36.tar.gz -C "$work" --strip-components=2 --wildcards \
    '*/vendor/llama.cpp/tools/server/tests/*' '*/vendor/llama.cpp/models/templates/*'
fi
if [ ! -e "$work/packages/done" ]; then
  "$python" -m pip install -q --upgrade --target "$work/packages" 'pytest~=8.3.3' pytest-timeout 'filelock~=3.16' \
    'numpy~=2.2' 'openai~=2.14.0' 'requests~=2.32.3' 'prometheus-client~=0.20.0' 'aiohttp~=3.9' ||
    skip "packages of the suite cannot be installed"
  touch "$work/packages/done"
fi

# Where the suite starts llama-server, Kvasir starts.
printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$python" "$root/tests/llama_server_suite.py" >"$work/llama-server"
chmod +x "$work/llama-server"
export LLAMA_SERVER_BIN_PATH="$work/llama-server"
# A free port that the system gives to no program that asks for any; each test starts its own server at it.
PORT=$("$python" - <<'EOP'
import random
import socket
while True:
    port = random.randrange(20000, 32000)
    try:
        with socket.create_server(("127.0.0.1", port)):
            break
    except OSError:
        pass
print(port)
EOP
)
export PORT
export PYTHONPATH="$work/packages:$root/tests"
# No model comes from a hub: what asks for one fails at once.
export HF_HUB_OFFLINE=1
cd "$work/llama.cpp/tools/server/tests"
mkdir -p tmp
exec "$python" -m pytest -p llama_server_suite -p no:cacheprovider -q --tb=short --show-capture=no \
  --timeout 60 -m "not slow" "${@:-unit}"

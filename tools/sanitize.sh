#!/usr/bin/env bash
# tools/sanitize.sh asan|tsan: builds the library and the fast tests with a sanitizer, runs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
cmake --preset "$preset"
cmake --build "build/$preset"
# ThreadSanitizer of GCC 12 needs the address layout of before Linux 6.6: no randomisation.
without_aslr=()
if setarch "$(uname -m)" -R true 2>/dev/null; then without_aslr=(setarch "$(uname -m)" -R); fi
exec "${without_aslr[@]}" ctest --test-dir "build/$preset" -L fast -j"$(nproc)" --output-on-failure

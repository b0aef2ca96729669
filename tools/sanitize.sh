#!/usr/bin/env bash
# tools/sanitize.sh asan|tsan: runs the C++ tests that build/asan or build/tsan has.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
# ThreadSanitizer of GCC 12 needs the address layout of before Linux 6.6: no randomisation.
without_aslr=()
if setarch "$(uname -m)" -R true 2>/dev/null; then without_aslr=(setarch "$(uname -m)" -R); fi
# The scalar kernels touch the same memory as the others, ten times as slowly here: not again. Which
# thread touches what does not depend on the target.
skipped='/scalar( |$)'
# A whole model runs on one narrow and one wide target here: the two between them walk the same rows
# (25 s of asan); their kernels alone are tested on all.
if [ "$preset" = asan ]; then
  skipped+='|Runner(Targets|Batch|Masks)\..*/avxvnni( |$)'
  if grep -qw -m1 avx512_vnni /proc/cpuinfo; then skipped+='|Runner(Targets|Batch|Masks)\..*/avx512( |$)'; fi
fi
if [ "$preset" = tsan ]; then skipped='/(scalar|avxvnni|avx512|avx512vnni|amx)( |$)'; fi
"${without_aslr[@]}" ctest --test-dir "build/$preset" -L fast -E "$skipped" -j"$(nproc)" \
  --output-on-failure || status=$?
cp "build/$preset/Testing/Temporary/LastTest.log" "build/tests-$preset.log"
exit "${status:-0}"

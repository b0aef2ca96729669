#!/usr/bin/env bash
# tools/sanitize.sh asan|tsan: runs the C++ tests that build/asan or build/tsan has.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
# ThreadSanitizer of clang 16 needs the address layout of before Linux 6.6: no randomisation.
without_aslr=()
if setarch "$(uname -m)" -R true 2>/dev/null; then without_aslr=(setarch "$(uname -m)" -R); fi
# The kernels of these targets are compiled without a sanitizer (cmake/kvasir.cmake): those of one narrow
# and one wide target are checked, and touch the same memory. The release build runs all of them.
skipped='*/scalar:*/avxvnni:*/avx512:*/amx:*/amxsoft'
# The release build also sees that the twins find faults.
skipped+=':*Twin.Sees*'
# Which thread touches what does not depend on the target; these tests run in one thread.
if [ "$preset" = tsan ]; then
  skipped+=':*/avx512vnni:TierSimulation*:*TierMutant*:TierFlips*:SealedRowsTest*:*KeepsTheCapAndEvicts*:RecordIndex*'
  skipped+=':Simulation*:WeightOrder*:WeightedDraw*:BeamSearch*:ChatForms*'
fi
built=$(find "build/$preset" -name '*_test' -type f -perm -u+x -printf '%f|')  # all, or those of some rooms
selected="^(${built%|})\\."
# Compiled last: where the time ended before, no test of a corpus can start.
[ -z "$(find "build/$preset" -name fuzz_replay -type f -perm -u+x)" ] || selected+='|_corpus$'
GTEST_FILTER="-$skipped" "${without_aslr[@]}" ctest --test-dir "build/$preset" -L fast \
  -R "$selected" --no-tests=error -j"$((2 * $(nproc)))" --output-on-failure || status=$?
cp "build/$preset/Testing/Temporary/LastTest.log" "build/tests-$preset.log"
exit "${status:-0}"

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
logs=build/$preset/Testing/Temporary status=0
run() { GTEST_FILTER="-$skipped" "${without_aslr[@]}" ctest --test-dir "build/$preset" --output-on-failure "$@"; }
rm -f "$logs/LastTestsFailed.log"
run -L fast -R "$selected" --no-tests=error -j"$((2 * ${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}))" || status=$?
cp "$logs/LastTest.log" "build/tests-$preset.log"
# Tests of these rooms wait for clocks, which a busy machine disturbs: they run once more, alone, unless the sanitizer
# found something.
clocks='^[0-9]+:(remote|schedule|server|tier|engine|session)_test\.'
if [ -s "$logs/LastTestsFailed.log" ] && ! grep -qvE "$clocks" "$logs/LastTestsFailed.log" &&
  ! grep -qE 'Sanitizer|runtime error|WRONG ANSWER' "build/tests-$preset.log"; then
  status=0
  run --rerun-failed || status=$?
  cp "$logs/LastTest.log" "build/tests-$preset-alone.log"
fi
exit "$status"

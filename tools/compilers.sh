#!/usr/bin/env bash
# tools/compilers.sh [PRESET...]: builds the numerics test as g++ -O1, g++ -O3 and clang make it, and
# runs it: each must give the digests of tests/data/numerics.json, on every target of this CPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/skip.sh
[ $# -gt 0 ] || set -- gcc-o1 gcc-o3 clang
skipped=()
for preset in "$@"; do
  if [ "$preset" = clang ] && ! command -v clang++-16 >/dev/null; then
    skipped+=("$preset: no clang++-16 (./dev setup installs it)")
    continue
  fi
  cmake --preset "$preset"
  cmake --build "build/$preset" --parallel "$(nproc)" --target model_test
  "build/$preset/src/model/model_test" --gtest_filter='*Numerics*'
done
[ ${#skipped[@]} = 0 ] || skip "${skipped[*]}"

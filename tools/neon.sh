#!/usr/bin/env bash
# tools/neon.sh: builds the kernels, the sampler and their tests for aarch64 (NEON with dot products)
# with Debian's cross compiler and runs them under qemu-user. Needs g++-aarch64-linux-gnu, qemu-user
# and googletest (tools/packages/slow.txt); skips (exit 77) where one is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/skip.sh

readonly out=build/neon gtest=/usr/src/googletest/googletest
readonly cxx=aarch64-linux-gnu-g++
for need in "$cxx" qemu-aarch64; do
  command -v "$need" >/dev/null || skip "needs $need"
done
[ -d "$gtest" ] || skip "needs $gtest"

mkdir -p "$out"
# As cmake/kvasir.cmake makes it.
cat >"$out/source_paths.h" <<TEXT
#pragma once
#define KVASIR_SOURCE_DIR "$PWD"
#define KVASIR_SHARED_DIR KVASIR_SOURCE_DIR "/../shared"
TEXT
readonly flags=(-std=c++20 -O2 -ffp-contract=off -fno-math-errno -Iinclude -Isrc -I"$out" -I"$gtest/include"
  -DFMT_HEADER_ONLY -static)
objects=()
# compile SOURCE [FLAGS...]: to an object, unless that is newer than every source.
compile() {
  local object=$out/${1//\//_}.o
  objects+=("$object")
  if [ -f "$object" ] && [ -z "$(find src include "$1" -newer "$object" -print -quit)" ]; then return; fi
  "$cxx" "${flags[@]}" "${@:2}" -c "$1" -o "$object"
}
# The sources that CMake makes for a target (cmake/kvasir.cmake).
for header in tensor/kernels tensor/exp_sum tensor/quant_slice attention/kernels; do
  for target in scalar neon; do
    source=$out/${header//\//_}_$target.cc
    [ -f "$source" ] || printf '#include "%s-inl.h"\n' "$header" >"$source"
    lanes=(-DKVASIR_TARGET_ID=0 -DKVASIR_VNNI=1)
    if [ "$target" = neon ]; then lanes=(-DKVASIR_TARGET_ID=3 -DKVASIR_VNNI=1 -O3 -march=armv8.2-a+dotprod); fi
    compile "$source" "-DKVASIR_TARGET_NS=$target" "${lanes[@]}"
  done
done
for source in src/simd/*.cc src/format/*.cc src/tensor/*.cc src/attention/*.cc \
  src/block/block_layout.cc src/base/{arena,cpu_topology,mapped_file,mapping_faults}.cc \
  src/base/{memory_limit,system_error,system_files}.cc \
  src/sampling/{sampler,sampler_definition_test,infill_cut,logit_scan,weight_order,weighted_draw}.cc; do
  case $source in
    */logit_scan.cc) compile "$source" -O3 -fno-trapping-math ;;
    */quant_amxsoft.cc) compile "$source" -O1 ;;  # 18 s; with -O2 it takes minutes
    *) compile "$source" ;;
  esac
done
compile "$gtest/src/gtest-all.cc" -I"$gtest"
compile "$gtest/src/gtest_main.cc" -I"$gtest"
"$cxx" -static "${objects[@]}" -o "$out/kernels_test"
exec qemu-aarch64 -cpu max "$out/kernels_test" "$@"

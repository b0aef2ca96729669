#!/usr/bin/env bash
# build.sh CACHE_DIR [llama.cpp|ik_llama.cpp GIT_DIR]...: builds the peers for this CPU.
#
#   bench/peers/build.sh ~/.cache/kvasir-peers llama.cpp ik_llama.cpp ~/src/ik_llama.cpp
#
# llama.cpp comes from the source package of llama-cpp-python on PyPI (LLAMA_CPP_PYTHON=version),
# ik_llama.cpp from a git directory of its repository. Prints the folders of their tools. JOBS=N
# sets the compilers that run at once (default 2). One core hour each; what is built stays.
set -euo pipefail
readonly usage="usage: build.sh CACHE_DIR [llama.cpp | ik_llama.cpp GIT_DIR]..."
[ $# -gt 0 ] || { echo "$usage" >&2; exit 2; }
mkdir -p "$1"
cache=$(readlink -f "$1")
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
readonly cache here jobs=${JOBS:-2} version=${LLAMA_CPP_PYTHON:-0.3.36}
shift

# configure SOURCE LOG ARGS...: GGML_NATIVE compiles for what this CPU has, AMX and VNNI included.
configure() {
  cmake -S "$1" -B "$1/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF "${@:3}" >"$2" 2>&1 || { tail -n 20 "$2" >&2; exit 1; }
}

# build SOURCE LOG TARGETS...
build() {
  ninja -j"$jobs" -C "$1/build" "${@:3}" >"$2" 2>&1 || { tail -n 40 "$2" >&2; exit 1; }
}

# finish SOURCE NAME VERSION FLAG...: our own depth_bench beside their tools; folder and version
# under the peer's name.
finish() {
  local libraries bin=$1/build/bin
  libraries=$(find "$1/build" -name '*.so' -printf '%h\n' | sort -u)
  c++ -std=c++17 -O2 -I"$1/include" -I"$1/ggml/include" "$here/depth_bench.cc" \
    $(sed 's/.*/-L& -Wl,-rpath,&/' <<<"$libraries") "${@:4}" -lllama -lggml -o "$bin/depth_bench"
  ln -sfn "$bin" "$cache/$2-bin"
  echo "$3" >"$cache/$2-version"
  echo "$cache/$2-bin"
}

build_llama_cpp() {
  local package=$cache/llama_cpp_python-$version
  local source=$package/vendor/llama.cpp
  if [ ! -f "$source/CMakeLists.txt" ]; then
    python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python \
      -d "$cache" "llama-cpp-python==$version" >&2
    tar -xf "$package.tar.gz" -C "$cache"
  fi
  # GCC 12 tells LDTILECFG's operand as 8 bytes and drops the stores to the other 56: the AMX kernels
  # then end in an illegal instruction.
  local amx=$source/ggml/src/ggml-cpu/amx/mmq.cpp
  grep -q 'asm volatile("" : : "r"(&tc)' "$amx" ||
    sed -i 's|^\( *\)_tile_loadconfig(&tc);|\1asm volatile("" : : "r"(\&tc) : "memory");\n&|' "$amx"
  configure "$source" "$cache/llama.cpp-cmake.log" -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF
  build "$source" "$cache/llama.cpp-ninja.log" \
    llama-quantize llama-bench llama-batched-bench llama-server
  finish "$source" llama.cpp "llama-cpp-python $version" -lggml-base
}

build_ik_llama_cpp() {
  local source=$cache/ik_llama.cpp
  if [ ! -f "$source/CMakeLists.txt" ]; then
    git clone --quiet --no-checkout "$1" "$source"
    # A snapshot without its large files is enough: what is built does not need them.
    git -C "$source" checkout --quiet --force HEAD -- . 2>/dev/null || true
  fi
  # Its fast kernels need AVX512F, VNNI, VL, BW and DQ together; else they are AVX2.
  configure "$source" "$cache/ik_llama.cpp-cmake.log"
  build "$source" "$cache/ik_llama.cpp-ninja.log" \
    llama-bench llama-sweep-bench llama-batched-bench llama-server llama-quantize
  finish "$source" ik_llama.cpp "$(git -C "$source" rev-parse --short HEAD)" -DPEER_IK
}

while [ $# -gt 0 ]; do
  case $1 in
    llama.cpp) build_llama_cpp; shift ;;
    ik_llama.cpp) build_ik_llama_cpp "${2:?$usage}"; shift 2 ;;
    *) echo "$usage" >&2; exit 2 ;;
  esac
done

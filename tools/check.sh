#!/usr/bin/env bash
# The checks of `dev check`: all of them, or those named (format words layers headers sizes leftovers
# tidy, and all_headers, kernels).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

check_format() {
  git ls-files -z '*.h' '*.cc' | xargs -0r clang-format-16 --dry-run --Werror || return 1
  echo "format: $(git ls-files '*.h' '*.cc' | wc -l) files are formatted"
}

# build/style has a compile command for each source: in build/release they are joined.
configure_style() {
  cmake --preset style >build/configure-style.log 2>&1 &&
    cmake --build build/style --target kvasir_build_info >>build/configure-style.log 2>&1 ||
    { tail -n 20 build/configure-style.log; return 1; }
}

# Runs clang-tidy over changed files, those changed last first, for at most TIDY_S seconds (0: without
# limit): a day's changes can take half an hour.
check_tidy() {
  local until left files
  configure_style || return 1
  until=$(($(date +%s) + ${TIDY_S:-150}))
  left=$(mktemp)
  # Only files of the build: a part that is switched off has no compile command.
  files=$(tools/changed.sh 'src/*.cc' 'tests/*.cc' | while read -r file; do
    grep -qF "\"file\": \"$PWD/$file\"" build/style/compile_commands.json && echo "$file"
  done || true)
  if [ -n "$files" ]; then
    xargs -n1 -P"$(nproc)" bash -c '
      if [ "$0" -gt 0 ] && [ "$(date +%s)" -ge "$0" ]; then echo "$2" >>"$1"; exit; fi
      clang-tidy-16 -p build/style --quiet "$2" 2>/dev/null' \
      "$([ "${TIDY_S:-150}" = 0 ] && echo 0 || echo "$until")" "$left" <<<"$files" || { rm "$left"; return 1; }
  fi
  echo "tidy: $(($(grep -c . <<<"$files") - $(wc -l <"$left"))) changed files are clean;" \
    "no time was left for $(wc -l <"$left") (TIDY_S=0 ./dev check tidy looks at all)"
  rm "$left"
}

check_layers() { python3 tools/layers.py --self-test && python3 tools/layers.py && python3 tools/rooms.py --check; }
check_words() { python3 tools/words.py --self-test && python3 tools/words.py; }
check_headers() { configure_style && python3 tools/headers.py; }
check_all_headers() { configure_style && python3 tools/headers.py --all; }
# Not among the default ones: it reads what build/release has built.
check_kernels() { python3 tools/kernels.py; }
check_sizes() { python3 tools/sizes.py --self-test && python3 tools/sizes.py; }
check_leftovers() {
  local files
  files=$(git ls-files '*.orig' '*.rej')
  [ -z "$files" ] || { echo "leftovers: what merges left behind is tracked:" $files; return 1; }
  echo "leftovers: no .orig and .rej files are tracked"
}

[ $# -gt 0 ] || set -- format words layers headers sizes leftovers tidy
failed=()
# `set -e` does not work inside these functions, so each returns its failure.
for name in "$@"; do "check_$name" || failed+=("$name"); done
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }

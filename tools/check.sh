#!/usr/bin/env bash
# The checks of `dev check`: all of them, or those named (format words layers headers sizes leftovers
# tidy, and all_headers, all_tidy, kernels).
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

# tidy_files SECONDS FILES: runs clang-tidy over these lines for at most so many seconds (0: without limit).
tidy_files() {
  local left
  left=$(mktemp)
  if [ -n "$2" ]; then
    xargs -n1 -P"$(nproc)" bash -c '
      if [ "$0" -gt 0 ] && [ "$(date +%s)" -ge "$0" ]; then echo "$2" >>"$1"; exit; fi
      clang-tidy-16 -p build/style --quiet "$2" 2>/dev/null' \
      "$(($1 > 0 ? $(date +%s) + $1 : 0))" "$left" <<<"$2" || { rm "$left"; return 1; }
  fi
  echo "tidy: $(($(grep -c . <<<"$2") - $(wc -l <"$left"))) files are clean;" \
    "no time was left for $(wc -l <"$left") (./dev check all_tidy looks at all)"
  rm "$left"
}

# Passes on the files of the build: a part that is switched off has no compile command.
in_build() {
  while IFS= read -r file; do
    ! grep -qF "\"file\": \"$PWD/$file\"" build/style/compile_commands.json || printf '%s\n' "$file"
  done
}

# Changed files, the newest first, for about a minute: a day's changes can take half an hour.
check_tidy() { configure_style && tidy_files "${TIDY_S:-60}" "$(tools/changed.sh 'src/*.cc' 'tests/*.cc' | in_build)"; }
check_all_tidy() { configure_style && tidy_files 0 "$(git ls-files 'src/*.cc' 'tests/*.cc' | in_build)"; }

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
for name in "$@"; do
  if ! declare -F "check_$name" >/dev/null; then
    known=$(declare -F | sed -n 's/^declare -f check_//p')
    echo "check.sh: unknown check '$name'; known: ${known//$'\n'/, }" >&2
    exit 2
  fi
  "check_$name" || failed+=("$name")
done
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }

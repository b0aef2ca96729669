#!/usr/bin/env bash
# documents.sh KVASIR FOLDER: writes the man pages, from --help, and the completions of shells below FOLDER.
set -euo pipefail

readonly kvasir=$1 to=$2 here=$(dirname "${BASH_SOURCE[0]}")
version=$("$kvasir" --version | cut -d' ' -f2)

# page NAME COMMAND...: makes a man page of what the commands print.
page() {
  awk -v name="$1" -v version="$version" -f "$here/man_page.awk" | gzip -9n >"$to/man/man1/$1.1.gz"
}

rm -rf "$to"
mkdir -p "$to/man/man1" "$to/bash-completion/completions" "$to/zsh/vendor-completions" \
  "$to/fish/vendor_completions.d"
"$kvasir" --help | page kvasir
for command in $("$kvasir" --help | sed -n '/^Commands:/,/^[A-Z]/s/^  \([a-z][a-z]*\)  .*/\1/p'); do
  {
    help=$("$kvasir" help "$command")
    printf '%s\n' "$help"
    ! grep -q -- --help-expert <<<"$help" || "$kvasir" "$command" --help-expert
  } | page "kvasir-$command"
done
"$kvasir" completions bash >"$to/bash-completion/completions/kvasir"
"$kvasir" completions zsh >"$to/zsh/vendor-completions/_kvasir"
"$kvasir" completions fish >"$to/fish/vendor_completions.d/kvasir.fish"

#!/usr/bin/env bash
# tools/fresh_machine.sh [--test]: shows what a newcomer waits for. Makes a bare Debian 12 root
# (debootstrap), clones HEAD into it, runs `./dev serve` there, asks one question over HTTP, and prints
# seconds by phase. With --test it runs `./dev test` there instead. Needs root, debootstrap, git, curl
# and a Debian mirror. Exit 1: over the limit, no answer, or a test failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
  "") default_limit_s=200 ;;
  --test) default_limit_s=900 ;;
  *) echo "usage: tools/fresh_machine.sh [--test]" >&2; exit 2 ;;
esac
readonly limit_s=${LIMIT_S:-$default_limit_s}
readonly question='{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}'
server_pid=

die() { printf 'fresh_machine: %s\n' "$*" >&2; exit 1; }
now() { date +%s.%N; }
seconds() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", b - a }'; }

clean_up() {
  if [ -n "$server_pid" ] && kill -0 "$server_pid" 2>/dev/null; then
    kill -INT "$server_pid" 2>/dev/null || true
    wait "$server_pid" 2>/dev/null || true
  fi
  local mount
  for mount in dev/shm dev/pts dev proc; do
    if mountpoint -q "$machine/$mount"; then umount "$machine/$mount"; fi
  done
  if mountpoint -q "$machine/proc" || mountpoint -q "$machine/dev"; then
    die "cannot unmount $machine: left as it is"
  fi
  rm -rf --one-file-system "$work"
}

# The first http(s) mirror that this machine's apt uses for Debian.
mirror() {
  local found
  found=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null |
    sed -nE 's,^(deb .*|URIs: *)(https?://[^ ]+/debian)/?( .*)?$,\2,p' || true)
  [ -n "$found" ] || found=http://deb.debian.org/debian
  printf '%s\n' "${found%%$'\n'*}"
}

make_root() {
  debootstrap --variant=minbase --include=ca-certificates bookworm "$machine" "$(mirror)" \
    >"$work/debootstrap.log" 2>&1 || { tail -n 20 "$work/debootstrap.log" >&2; die "debootstrap failed"; }
  # Packages come the same way as on this machine: sources, settings, keys, names.
  rm -f "$machine/etc/apt/sources.list"
  local item
  for item in sources.list sources.list.d apt.conf.d trusted.gpg trusted.gpg.d keyrings preferences.d; do
    [ ! -e "/etc/apt/$item" ] || cp -a "/etc/apt/$item" "$machine/etc/apt/"
  done
  cp -aL /usr/share/keyrings/. "$machine/usr/share/keyrings/" 2>/dev/null || true
  cp -L /etc/resolv.conf /etc/hosts "$machine/etc/"
  mkdir -p "$machine/etc/ssl/certs"
  cp -L /etc/ssl/certs/ca-certificates.crt "$machine/etc/ssl/certs/"
  mount -t proc proc "$machine/proc" && mount --bind /dev "$machine/dev" &&
    mount -t devpts -o gid=5,ptmxmode=666 devpts "$machine/dev/pts" && mount -t tmpfs tmpfs "$machine/dev/shm" ||
    die "cannot mount /proc and /dev"
  git clone -q --depth 1 "file://$PWD" "$machine/kvasir"
}

# in_root COMMAND...: exec all the way, so that a background pid is the command's.
in_root() {
  local variables
  # Where packages come from: proxies, and the index of pip.
  mapfile -t variables < <(env | grep -iE '^((https?|no)_proxy|pip_[a-z_]*url|pip_trusted_host|pip_cert)=' || true)
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "${variables[@]}" \
    chroot "$machine" "$@"
}

# The time of `./dev test` on the machine.
run_tests() {
  local status=0 tested
  (in_root /kvasir/dev test) >"$log" 2>&1 || status=$?
  tested=$(now)
  sed -n '/^passed .* failed/,$p' "$log"
  printf '%-28s %s\n' "debootstrap and clone" "$(seconds "$began" "$rooted")" \
    "dev test (limit $limit_s)" "$(seconds "$rooted" "$tested")"
  if [ "$status" != 0 ]; then
    cp "$log" /var/tmp/kvasir-fresh.log
    die "dev test failed with $status: what it printed is in /var/tmp/kvasir-fresh.log"
  fi
  awk -v a="$rooted" -v b="$tested" -v limit="$limit_s" 'BEGIN { exit !(b - a <= limit) }' ||
    die "over the limit of $limit_s s"
}

# Each line of `dev serve` with the time at which it came.
start_server() {
  in_root /kvasir/dev serve --port 0 \
    > >(while IFS= read -r line; do printf '%s %s\n' "$(now)" "$line"; done >"$log") 2>&1 &
  server_pid=$!
}

first_answer() {
  local out url
  until url=$(sed -nE 's,.* listening on (http://[^ ]+)$,\1,p' "$log") && [ -n "$url" ] &&
    out=$(curl -fsS -m 60 -H 'Content-Type: application/json' -d "$question" "$url/v1/chat/completions" 2>/dev/null); do
    kill -0 "$server_pid" 2>/dev/null || { tail -n 30 "$log" | cut -d' ' -f2- >&2; die "dev serve ended"; }
    [ "$(date +%s)" -lt $((${began%.*} + 2 * limit_s)) ] || die "no answer after $((2 * limit_s)) s"
    sleep 0.1
  done
  answer=$out
}

# The time of the first line that matches, or the time before if no line does.
time_of() { awk -v pattern="$1" -v otherwise="$2" '$0 ~ pattern { print $1; found = 1; exit }
  END { if (!found) print otherwise }' "$log"; }

[ "$(id -u)" = 0 ] || die "needs root: debootstrap and chroot"
command -v debootstrap >/dev/null || die "needs debootstrap: apt-get install debootstrap"
readonly work=$(mktemp -d /var/tmp/kvasir-fresh.XXXXXX)
readonly machine=$work/root log=$work/log
trap clean_up EXIT
: >"$log"

began=$(now)
make_root
rooted=$(now)
if [ "${1:-}" = --test ]; then
  run_tests
  exit 0
fi
start_server
first_answer
answered=$(now)
packaged=$(time_of 'dev: packages installed' "$rooted")
configured=$(time_of 'dev: building kvasir' "$packaged")
built=$(time_of 'dev: built' "$configured")
printf '%-28s %s\n' \
  "debootstrap and clone" "$(seconds "$began" "$rooted")" \
  "packages" "$(seconds "$rooted" "$packaged")" \
  "configure" "$(seconds "$packaged" "$configured")" \
  "compile" "$(seconds "$configured" "$built")" \
  "start and first answer" "$(seconds "$built" "$answered")" \
  "total (limit $limit_s)" "$(seconds "$began" "$answered")"
printf 'answer: %s\n' "$answer"
awk -v a="$began" -v b="$answered" -v limit="$limit_s" 'BEGIN { exit !(b - a <= limit) }' ||
  die "over the limit of $limit_s s"

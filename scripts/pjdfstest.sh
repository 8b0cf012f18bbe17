#!/usr/bin/env bash
# The POSIX suite pjdfstest on a mount of a new cluster, compared with ext4: each case that passes
# on ext4 must pass on the mount, but for those in scripts/pjdfstest.known, which must fail.
#
#   scripts/pjdfstest.sh SAKER [PATTERN…]     PATTERN: only cases whose names contain one
#   scripts/pjdfstest.sh install              only builds the suite
#
# Needs root (or sudo) and /dev/fuse. The suite is built once, beside the target directory.
set -euo pipefail

version=0.2.2
# Cases that pass on ext4: fewer mean that the suite did not run as it should.
least=398
known=$(realpath "$(dirname "$0")")/pjdfstest.known
tools=$(realpath -m "${CARGO_TARGET_DIR:-$(dirname "$0")/../target}")/tools
suite=$tools/bin/pjdfstest

install_suite() {
    "$(dirname "$0")/packages.sh" libacl1-dev pkg-config
    CARGO_TARGET_DIR=$tools/build cargo install --quiet --locked --root "$tools" \
        pjdfstest --version "=$version"
    rm -rf "$tools/build"
}

[[ $("$suite" --version 2>/dev/null) == "pjdfstest $version" ]] || install_suite
[[ $1 == install ]] && exit
saker=$(realpath "$1")
if [[ $EUID -ne 0 ]]; then
    exec sudo -E "$0" "$@"
fi
shift

work=$(mktemp -d "${SAKER_SCRATCH:-${TMPDIR:-/tmp}}/saker-pjdfstest-XXXXXX")
finish() {
    local code=$?
    "$saker" down --dir "$work/cluster" >"$work/down.log" 2>&1 || true
    umount "$work/disk" "$work/other" 2>/dev/null || true
    if [[ $code -eq 0 ]]; then
        rm -rf --one-file-system "$work"
    else
        echo "files are kept in $work"
    fi
}
trap finish EXIT

# The disk is an ext4 of its own, so that the suite may remount it read-only; the other file system
# is for what must not cross. Other users must be able to walk to them.
chmod 755 "$work"
mkdir "$work/disk" "$work/other"
truncate -s 256M "$work/disk.img"
mkfs.ext4 -q "$work/disk.img"
mount -o loop "$work/disk.img" "$work/disk"
mount -t tmpfs tmpfs "$work/other"
"$saker" up --dir "$work/cluster" --mount "$work/mnt"
# mount(8) looks for the program of the type fuse.saker in /usr/local/bin: here alone.
mkdir "$work/bin"
ln -s "$saker" "$work/bin/saker"

cat >"$work/suite.toml" <<TOML
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
[settings]
naptime = 0.01
TOML
(cat "$work/suite.toml" && echo "allow_remount = true") >"$work/remount.toml"

# suite LOG SETTINGS DIR PATTERN…
suite() {
    local log=$1 settings=$2 dir=$3
    shift 3
    # shellcheck disable=SC2016
    RUST_BACKTRACE=0 unshare --mount \
        sh -c 'mount --bind "$0" /usr/local/bin && exec "$@"' "$work/bin" \
        "$suite" -c "$work/$settings.toml" -p "$dir" -s "$work/other" -- "$@" >>"$log" 2>&1 || true
}

# run NAME DIR PATTERN…: the suite in a directory; the names of cases by outcome.
run() {
    local name=$1 dir=$2 start=$SECONDS log=$work/$1.log
    shift 2
    suite "$log" suite "$dir" "$@"
    # Apart from the others, of which some leave files open: then nothing can be made read-only.
    [[ $# -gt 0 ]] || suite "$log" remount "$dir" erofs
    sed -n 's/^\([a-z_0-9:]\+\) \+ok$/\1/p' "$log" | sort >"$work/$name.ok"
    echo "$name: $(grep '^Summary: ' "$log" | sed 's/^Summary: //' | paste -sd ';')" \
        "($((SECONDS - start)) s)"
}

run disk "$work/disk" "$@"
run mount "$work/mnt" "$@"

if [[ $# -eq 0 && $(wc -l <"$work/disk.ok") -lt $least ]]; then
    cat "$work/disk.failed"
    echo "on ext4 there must be $least cases that pass"
    exit 1
fi
sed 's/ *#.*//; /^$/d' "$known" | sort >"$work/known"
comm -23 "$work/disk.ok" "$work/mount.ok" >"$work/missing"
passed=$(comm -12 "$work/disk.ok" "$work/mount.ok" | wc -l)
bad=0
while read -r name; do
    echo "FAIL $name: it passes on ext4"
    grep -A 1 "^$name " "$work/mount.log" | tail -n 1
    bad=$((bad + 1))
done < <(comm -23 "$work/missing" "$work/known")
while read -r name; do
    echo "FAIL $name: it passes, but $known lists it"
    bad=$((bad + 1))
done < <(comm -12 "$work/known" "$work/mount.ok")
if [[ $# -eq 0 ]]; then
    while read -r name; do
        echo "FAIL $name: $known lists it, but it is no case that passes on ext4"
        bad=$((bad + 1))
    done < <(comm -23 "$work/known" "$work/disk.ok")
fi
echo "pjdfstest: $((passed - $(comm -12 "$work/known" "$work/mount.ok" | wc -l))) passed, $bad failed"
[[ $bad -eq 0 ]]

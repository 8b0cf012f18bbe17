#!/usr/bin/env bash
# The tests of xfstests' groups generic and quick on mounts of two new clusters.
#
#   scripts/xfstests.sh SAKER DIR [TEST…]     DIR: a checkout of xfstests, built there if it is not
#                                             TEST: as generic/001; only these
#
# Each test must pass or say that it cannot run here, but for those in scripts/xfstests.known. Needs
# root and /dev/fuse. Adds the users that the tests ask for (fsgqa, fsgqa2). Takes about an hour.
set -euo pipefail

[[ $# -ge 2 ]] || { sed -n '2,8s/^# \?//p' "$0"; exit 2; }
saker=$(realpath "$1")
suite=$(realpath "$2")
shift 2
here=$(realpath "$(dirname "$0")")
known=$here/xfstests.known
[[ $EUID -eq 0 ]] || { echo "xfstests.sh: must be run by root" >&2; exit 1; }
[[ -e $suite/check ]] || { echo "xfstests.sh: $suite is no checkout of xfstests" >&2; exit 1; }

build_suite() {
    "$here/packages.sh" acl attr automake bc build-essential dbench fio fuse3 gawk indent libacl1-dev libaio-dev \
        libattr1-dev libcap-dev libcap2-bin libgdbm-dev libssl-dev libtool-bin liburing-dev pkg-config psmisc \
        quota uuid-dev xfslibs-dev xfsprogs
    make --silent -C "$suite" >"$suite/build.log" 2>&1 || { tail -n 20 "$suite/build.log"; exit 1; }
}

[[ -x $suite/ltp/fsstress && -x $suite/src/open_by_handle ]] || build_suite
for user in fsgqa fsgqa2; do
    id "$user" >/dev/null 2>&1 || useradd --create-home "$user"
done

work=$(mktemp -d "${SAKER_SCRATCH:-${TMPDIR:-/tmp}}/saker-xfstests-XXXXXX")
finish() {
    local code=$? cluster
    umount "$work/test" "$work/scratch" 2>/dev/null || true
    for cluster in "$work"/cluster-*; do
        "$saker" down --dir "$cluster" >>"$work/down.log" 2>&1 || true
    done
    if [[ $code -eq 0 ]]; then
        rm -rf --one-file-system "$work"
    else
        echo "files are kept in $work"
    fi
}
trap finish EXIT

# mount(8) looks for the program of the type fuse.saker in /usr/local/bin: in this shell's tree only.
chmod 755 "$work"
mkdir "$work/bin" "$work/test" "$work/scratch" "$work/results"
ln -s "$saker" "$work/bin/saker"
# The suite knows file systems in user space by the type "fuse" only.
cat >"$work/bin/df" <<'DF'
#!/bin/bash
set -o pipefail
/usr/bin/df "$@" | sed 's/fuse\.saker/fuse      /'
DF
chmod +x "$work/bin/df"
"$saker" up --dir "$work/cluster-test" --port 7400
"$saker" up --dir "$work/cluster-scratch" --port 7600 --mnodes 1 --stores 1

cat >"$work/local.config" <<CONFIG
export FSTYP=fuse
export FUSE_SUBTYP=.saker
export TEST_DEV=127.0.0.1:7400
export TEST_DIR=$work/test
export SCRATCH_DEV=127.0.0.1:7600
export SCRATCH_MNT=$work/scratch
export MOUNT_OPTIONS="-o fsname=127.0.0.1:7600"
export TEST_FS_MOUNT_OPTS="-o fsname=127.0.0.1:7400"
export RESULT_BASE=$work/results
CONFIG

# What these need is not Saker's: a capability that containers often lack.
left_out=()
if ! capsh --has-p=cap_sys_resource 2>/dev/null; then
    echo "note: no CAP_SYS_RESOURCE: generic/394, 531 and 564 are left out"
    left_out=(generic/394 generic/531 generic/564)
fi

tests=("$@")
if [[ $# -eq 0 ]]; then
    tests=(-g quick)
    # Three million appends of four bytes, each of them a request: an hour.
    echo "note: generic/069 is left out; it takes an hour"
    left_out+=(generic/069)
fi
printf '%s\n' "${left_out[@]}" >"$work/left-out"
# shellcheck disable=SC2016
(cd "$suite" && HOST_OPTIONS=$work/local.config unshare --mount \
    sh -c 'mount --bind "$0" /usr/local/bin && exec ./check -E "$@"' \
    "$work/bin" "$work/left-out" "${tests[@]}") 2>&1 | tee "$work/check.log" || true

failed() { sed -n 's/^Failures: //p' "$work/check.log" | tr ' ' '\n' | sed '/^$/d' | sort -u; }
ran=$(sed -n 's/^Ran: //p' "$work/check.log" | wc -w)
skipped=$(sed -n 's/^Not run: //p' "$work/check.log" | wc -w)
if [[ $ran -eq 0 ]]; then
    echo "no test ran"
    exit 1
fi
sed 's/ *#.*//; /^$/d' "$known" | sort >"$work/known"
failed >"$work/failed"
bad=0
while read -r name; do
    echo "FAIL $name: see $work/results/$name.out.bad"
    bad=$((bad + 1))
done < <(comm -13 "$work/known" "$work/failed")
expected=$(comm -12 "$work/known" "$work/failed" | wc -l)
echo "xfstests: $((ran - skipped - expected - bad)) passed, $bad failed, $expected known to fail, $skipped cannot run here"
[[ $bad -eq 0 ]]

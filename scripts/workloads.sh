#!/usr/bin/env bash
# Real programs on a mount of a new cluster: git, tar, sqlite, fio, cargo, find, du, ls, cp, rsync.
#
#   scripts/workloads.sh SAKER [short|long]
#
# SAKER is the program under test. Needs root and /dev/fuse, and what scripts/packages.sh installs.
set -euo pipefail

saker=$(realpath "$1")
form=${2:-short}
repository=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
work=$(mktemp -d "${SAKER_SCRATCH:-${TMPDIR:-/tmp}}/saker-workloads-XXXXXX")
mnt=$work/mnt
passed=0
failed=()

finish() {
    local code=$?
    "$saker" down --dir "$work/cluster" >"$work/down.log" 2>&1 || true
    if [[ $code -eq 0 && ${#failed[@]} -eq 0 ]]; then
        rm -rf "$work"
    else
        echo "files are kept in $work"
    fi
}
trap finish EXIT

# check NAME COMMAND…: runs it in a shell of its own that stops at the first error.
check() {
    local name=$1 start=$SECONDS
    shift
    # Not as a condition: that would switch errexit off inside.
    set +e
    (set -euo pipefail; "$@") >"$work/$name.log" 2>&1
    local code=$?
    set -e
    if [[ $code -eq 0 ]]; then
        passed=$((passed + 1))
        echo "ok   $name ($((SECONDS - start)) s)"
    else
        failed+=("$name")
        echo "FAIL $name ($((SECONDS - start)) s)"
        tail -n 20 "$work/$name.log" | sed 's/^/     /'
    fi
}

clone_git() {
    git clone --quiet --no-hardlinks "$repository" "$mnt/clone"
    git -C "$mnt/clone" fsck --full --strict
    test -z "$(git -C "$mnt/clone" status --porcelain)"
    git -C "$mnt/clone" -c user.name=t -c user.email=t@example.org commit --quiet --allow-empty -m t
    git -C "$mnt/clone" gc --quiet
    git -C "$mnt/clone" fsck --full
}

unpack_tar() {
    git -C "$repository" archive --format=tar HEAD >"$work/tree.tar"
    mkdir "$mnt/tar" "$work/tar"
    tar -C "$mnt/tar" -xf "$work/tree.tar"
    tar -C "$work/tar" -xf "$work/tree.tar"
    diff -r "$work/tar" "$mnt/tar"
    tar -C "$mnt/tar" -cf - . | tar -tf - >"$work/tar.names"
}

sqlite() {
    local db=$mnt/sqlite.db
    {
        echo "PRAGMA journal_mode=WAL; CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT);"
        for i in $(seq 1 10); do
            echo "BEGIN;"
            echo "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900)"
            echo "INSERT INTO t(v) SELECT hex(randomblob(100)) FROM n;"
            echo "COMMIT;"
        done
        # One transaction each: the log is written and read again and again.
        for i in $(seq 1 1000); do echo "INSERT INTO t(v) VALUES('single $i');"; done
    } | sqlite3 "$db"
    test "$(sqlite3 "$db" 'SELECT count(*) FROM t')" = 10000
    test "$(sqlite3 "$db" 'PRAGMA integrity_check')" = ok
    test "$(sqlite3 "$db" 'PRAGMA journal_mode')" = wal
}

fio_verify() {
    local size=8m
    [[ $form == long ]] && size=64m
    mkdir -p "$mnt/fio"
    # No memory mapping of the job file, no direct I/O: what programs ordinarily do.
    fio --name=verify --directory="$mnt/fio" --rw=randwrite --bs=4k-64k --size=$size --numjobs=4 \
        --ioengine=psync --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 --group_reporting \
        --end_fsync=1 --fallocate=none --output="$work/fio.out"
    fio --name=verify --directory="$mnt/fio" --rw=randread --bs=4k-64k --size=$size --numjobs=4 \
        --ioengine=psync --group_reporting --output="$work/fio.read"
}

cargo_build() {
    mkdir -p "$work/crate/src"
    printf '[package]\nname = "hello"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n' \
        >"$work/crate/Cargo.toml"
    printf 'fn main() { println!("hello"); }\n#[test]\nfn t() { assert_eq!(1 + 1, 2); }\n' \
        >"$work/crate/src/main.rs"
    cd "$work/crate"
    export CARGO_TARGET_DIR=$mnt/target
    cargo build --offline --quiet
    "$mnt/target/debug/hello" | grep -qx hello
    cargo test --offline --quiet
    touch src/main.rs
    cargo build --offline --quiet
}

# same_listing SOURCE COPY: names, kinds, sizes, modes, owners and times through find, ls and du.
same_listing() {
    local format='%P %y %m %U %G %n %T@ %l\n'
    diff <(cd "$1" && find . ! -type d -printf "$format%s\n" | sort) \
        <(cd "$2" && find . ! -type d -printf "$format%s\n" | sort)
    diff <(cd "$1" && find . -type d -printf "$format" | sort) \
        <(cd "$2" && find . -type d -printf "$format" | sort)
    # Sizes of directories are the file system's own business.
    local names='/^total/d; s/^\(d[^ ]* *[^ ]* [^ ]* *[^ ]* *\)[0-9]* /\1 /; s/  */ /g'
    diff <(cd "$1" && ls -lR --time-style=full-iso | sed "$names") \
        <(cd "$2" && ls -lR --time-style=full-iso | sed "$names")
    local du='find . -type f -print0 | du --apparent-size -bc --files0-from=- | tail -n 1'
    diff <(cd "$1" && bash -c "$du") <(cd "$2" && bash -c "$du")
}

# copy NAME SOURCE: a faithful copy, which every tool finds equal.
copy() {
    mkdir -p "$mnt/copies"
    cp -a "$2" "$mnt/copies/$1"
    compare "$1" "$2"
}

compare() {
    diff -r --no-dereference "$2" "$mnt/copies/$1"
    test -z "$(rsync -anicHAX --delete "$2/" "$mnt/copies/$1/")"
    same_listing "$2" "$mnt/copies/$1"
}

# The same, after everything was stopped and started.
again() {
    sqlite3 "$mnt/sqlite.db" 'PRAGMA integrity_check' | grep -qx ok
    git -C "$mnt/clone" fsck --full
    fio --name=verify --directory="$mnt/fio" --rw=randwrite --bs=4k-64k \
        --size="$([[ $form == long ]] && echo 64m || echo 8m)" --numjobs=4 --ioengine=psync \
        --verify=crc32c --verify_only --verify_fatal=1 --verify_state_save=0 --fallocate=none --output="$work/fio.again"
}

restart() {
    "$saker" down --dir "$work/cluster"
    "$saker" up --dir "$work/cluster" --mount "$mnt"
}

fsck() {
    "$saker" fsck --cluster "$work/cluster"
}

remove_all() {
    rm -rf "$mnt"/*
    test -z "$(ls -A "$mnt")"
    test "$(stat -c %h "$mnt")" = 2
}

# A source tree that is large and that nobody changes meanwhile.
package_sources() {
    local sources=("${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/)
    find "${sources[0]}" -mindepth 1 -maxdepth 1 -type d -print0 |
        du -s --files0-from=- | sort -n | tail -n 1 | cut -f 2
}

"$saker" up --dir "$work/cluster" --mount "$mnt"

check git clone_git
check tar unpack_tar
check sqlite sqlite
check fio fio_verify
check cargo cargo_build
check copy-include copy include /usr/include
if [[ $form == long ]]; then
    check copy-share copy share /usr/share
    check copy-package copy package "$(package_sources)"
fi
check restart restart
check again again
check compare-include compare include /usr/include
if [[ $form == long ]]; then
    check compare-share compare share /usr/share
    check compare-package compare package "$(package_sources)"
fi
check fsck fsck
check remove remove_all

echo "workloads: $passed passed, ${#failed[@]} failed ${failed[*]-}"
[[ ${#failed[@]} -eq 0 ]]

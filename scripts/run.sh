#!/usr/bin/env bash
# make run: a cluster on this machine, mounted, tried with a real tree, and left running.
#
# Settings by environment: SAKER_DIR (.saker), SAKER_MNT (./mnt), SAKER_TREE (/usr/include).
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${SAKER_DIR:-.saker}
mnt=${SAKER_MNT:-./mnt}
tree=${SAKER_TREE:-/usr/include}

scripts/packages.sh build-essential clang fuse3 rsync
saker=$(scripts/build.sh)

if [[ ! -e /dev/fuse ]]; then
    echo "there is no /dev/fuse: modprobe fuse, or give it to this container" \
        "(docker run --device /dev/fuse --cap-add SYS_ADMIN …)" >&2
    exit 1
fi

mkdir -p "$mnt"
"$saker" up --dir "$dir" --mount "$mnt"

# A real tree; where there are no headers, this repository's own sources.
[[ -d $tree ]] || tree=$PWD/crates
copy=$mnt/tried
echo "copying $tree in, and comparing it"
rm -rf "$copy"
start=$(date +%s.%N)
cp -a "$tree" "$copy"
diff -r --no-dereference "$tree" "$copy"
rsync -aniHAX --delete "$tree/" "$copy/" | (! grep .)
end=$(date +%s.%N)
files=$(find "$copy" | wc -l)
echo "$files entries copied and read back equal in $(echo "$end $start" | awk '{printf "%.1f", $1 - $2}') s"

"$saker" fsck --cluster "$dir"
cat <<TEXT

It runs. Try:
  ls $mnt; cp -a SOMETHING $mnt/        a file system like any other
  $saker status --cluster $dir
  $saker fs ls -l --cluster $dir /      the same files without the mount
  $saker bench meta --cluster $dir --seconds 5
  kill -9 \$(cat $dir/run/mnode-1.pid)   it is started again, and nothing is lost
  LD_PRELOAD=$(dirname "$saker")/libsaker_preload.so ls /saker   datasets: docs/datasets.md
  make stop                             stop it; make run goes on with the same files
TEXT

#!/usr/bin/env bash
# How long a cluster takes to serve again, with all its files, after each of its processes was
# killed with -9 at once.
#
#   scripts/recovery.sh SAKER MILLION DIR MNODES [FILES]
#
# SAKER and MILLION (the example of tools/sim) are release builds; DIR is made, and wiped at the
# end. With COLD=1, as root, the page cache is emptied in between, as after a loss of power.
set -euo pipefail

saker=$1 million=$2 dir=$3 mnodes=$4 files=${5:-1250000}

now() { date +%s%N; }
ms() { echo $((($2 - $1) / 1000000)); }

"$saker" up --dir "$dir" --mnodes "$mnodes" --stores 1 >/dev/null
trap '"$saker" down --dir "$dir" --wipe >/dev/null' EXIT
"$million" "$dir" "$files"

# The supervisor first: it would start the others again.
for pid in "$dir/supervisor.pid" "$dir"/run/*.pid; do
    kill -9 "$(cat "$pid")" 2>/dev/null || true
done
sleep 1
journals=$(find "$dir" -path '*journal*' -type f -print0 | du -cm --files0-from=- | tail -n 1 | cut -f 1)
if [[ -n ${COLD:-} ]]; then
    sync
    echo 3 >/proc/sys/vm/drop_caches
fi

start=$(now)
"$saker" up --dir "$dir" >/dev/null
served=$(now)
# One file of each: the last ones were made last.
for n in 0 1 2 3 4 5 6 7; do
    "$saker" fs --cluster "$dir" stat "/million/file-$(printf %07d $((files - 1 - n)))" >/dev/null
done
answered=$(now)
echo "$mnodes MNodes, $files files, journals of $journals MiB:" \
    "all serve after $(ms "$start" "$served") ms, eight files are found $(ms "$served" "$answered") ms later"
listed=$("$saker" fs --cluster "$dir" ls /million | wc -l)
echo "$listed of $files files are listed"
"$saker" fsck --cluster "$dir" | tail -n 3
[[ $listed -eq $files ]]

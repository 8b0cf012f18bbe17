#!/usr/bin/env bash
# What merging, prefix coalescing, group commit and lazy replication give (FalconFS, figure 16): mkdir through the
# library on four MNodes, with each switched off in turn; and getattr of paths that are not there,
# which takes two hops.
#
#   scripts/breakdown.sh SAKER DIR [SECONDS]
#
# SAKER is a release build; DIR is made, and wiped at the end.
set -euo pipefail

saker=$1 dir=$2 seconds=${3:-10}
threads=2 inflight=256

measure() {
    local name=$1 settings=("${@:2}")
    "$saker" up --dir "$dir" --mnodes 4 --stores 1 >/dev/null
    if [[ ${#settings[@]} -gt 0 ]]; then
        "$saker" down --dir "$dir" >/dev/null
        for file in "$dir"/etc/mnode-*.toml; do
            # Before the first table, where the keys of the whole file are.
            { printf '%s = false\n' "${settings[@]}"; cat "$file"; } >"$file.new"
            mv "$file.new" "$file"
        done
        "$saker" up --dir "$dir" >/dev/null
    fi
    echo "== $name"
    "$saker" bench meta --missing --cluster "$dir" --threads $threads --inflight $inflight --seconds "$seconds"
    "$saker" down --dir "$dir" --wipe >/dev/null
}
trap '"$saker" down --dir "$dir" --wipe >/dev/null 2>&1 || true' EXIT

measure full
measure "no prefix coalescing" coalesce_prefixes
measure "no lazy replication" lazy_replication
measure "no lazy replication, no merging" lazy_replication merge_requests group_commit
measure "no merging" merge_requests group_commit
measure "no group commit" group_commit

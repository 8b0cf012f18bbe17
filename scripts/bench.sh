#!/usr/bin/env bash
# make bench: all figures of docs from one run, on a cluster of its own.
#
#   scripts/bench.sh [SECONDS]      length of a phase (5)
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-5}
saker=$(scripts/build.sh)
work=$(mktemp -d "${SAKER_SCRATCH:-${TMPDIR:-/tmp}}/saker-bench-XXXXXX")
finish() {
    "$saker" down --dir "$work/cluster" --wipe >/dev/null 2>&1 || true
    rm -rf --one-file-system "$work"
}
trap finish EXIT

nproc_text=$(nproc)
echo "cores: $nproc_text; kernel: $(uname -r); disk of $work: $(df --output=fstype "$work" | tail -n 1)"
"$saker" bench raw --dir "$work/raw" --seconds "$seconds"
"$saker" up --dir "$work/cluster" --mount "$work/mnt"
cluster=(--cluster "$work/cluster" --seconds "$seconds")
"$saker" bench meta "${cluster[@]}" --inflight 1 --threads 1
"$saker" bench meta "${cluster[@]}"
"$saker" bench small "${cluster[@]}"
if [[ -e /dev/fuse ]]; then
    "$saker" bench meta --path "$work/mnt" --seconds "$seconds"
    "$saker" bench small --path "$work/mnt" --seconds "$seconds"
fi

#!/usr/bin/env bash
# make stop: stops what make run has started. The files stay.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${SAKER_DIR:-.saker}
if [[ ! -f $dir/cluster.toml ]]; then
    echo "nothing to stop: there is no cluster in $dir"
    exit 0
fi
saker=${SAKER_BIN:-${CARGO_TARGET_DIR:-target}/release/saker}
[[ -x $saker ]] || saker=$(scripts/build.sh)
exec "$saker" down --dir "$dir"

#!/usr/bin/env bash
# make nodes: staged datasets on up to 64 nodes, network namespaces of this machine; results in
# docs/benchmarks.
#
#   scripts/nodes.sh [--quick] [--cores N] [--gbit N] [--round-trip-us N]
#
# Needs root. Other results than those of docs go where $SAKER_NODES_OUT says. With $SAKER_BIN,
# libsaker_preload.so is taken from beside it.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/packages.sh build-essential iproute2 python3-matplotlib util-linux
saker=$(scripts/build.sh)
preload=$(dirname "$saker")/libsaker_preload.so
if [[ -z ${SAKER_BIN:-} ]]; then
    # build.sh may have found it where the shell does not.
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin cargo build --release --package saker-preload >&2
fi
exec /usr/bin/python3 scripts/nodes --saker "$saker" --preload "$preload" \
    --out "${SAKER_NODES_OUT:-docs/benchmarks}" "$@"

#!/usr/bin/env bash
# make peers, traverse, frozen, policies, untar: Saker beside other file systems; results in docs/benchmarks.
#
#   scripts/peers.sh compare [SYSTEM…] [--quick] [--rounds N] [--seconds S] [--more]
#   scripts/peers.sh traverse [SYSTEM…] [--files N] [--budgets 10,100]
#   scripts/peers.sh frozen [SYSTEM…] [--quick]
#   scripts/peers.sh policies [FIGURE…] [--quick]
#   scripts/peers.sh untar [SYSTEM…] [--quick]
#
# Needs root. Other results than those of docs go where $SAKER_PEERS_OUT says.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/packages.sh clang fuse3 gcc iproute2 python3-matplotlib rsync util-linux
saker=$(scripts/build.sh)
exec /usr/bin/python3 scripts/peers --saker "$saker" \
    --out "${SAKER_PEERS_OUT:-docs/benchmarks}" "$@"

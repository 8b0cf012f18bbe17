#!/usr/bin/env bash
# make test: the stages of CI, one after the other; stops at the first that fails.
#
#   scripts/test.sh [--long] [STAGE…]       some stages only, by name
set -euo pipefail
cd "$(dirname "$0")/.."

long=
if [[ ${1:-} == --long ]]; then
    long=1
    shift
fi
wanted=("$@")
begin=$SECONDS

# stage NAME COMMAND…
stage() {
    local name=$1 start=$SECONDS
    shift
    if [[ ${#wanted[@]} -gt 0 && ! " ${wanted[*]} " == *" $name "* ]]; then
        return
    fi
    echo "=== $name"
    if ! "$@"; then
        echo "=== $name FAILED after $((SECONDS - start)) s" >&2
        exit 1
    fi
    echo "=== $name: $((SECONDS - start)) s"
}

long_form() { [[ -n $long ]]; }

stage packages scripts/packages.sh build-essential fuse3 rsync
stage format cargo fmt --all --check
stage lint cargo clippy --workspace --all-targets --quiet -- -D warnings
stage build cargo build --workspace --quiet
if long_form; then export SAKER_TEST_LONG=1; fi
stage tests cargo test --workspace --quiet
stage docs env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
echo "=== all passed: $((SECONDS - begin)) s"

#!/usr/bin/env bash
# Builds the program and libsaker_preload.so for production, in one directory, and prints the
# program's path. Honours CARGO_TARGET_DIR; with SAKER_BIN set, that program is taken as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -n ${SAKER_BIN:-} ]]; then
    realpath "$SAKER_BIN"
    exit
fi

if ! command -v cargo >/dev/null && [[ -f ${CARGO_HOME:-$HOME/.cargo}/env ]]; then
    # shellcheck source=/dev/null
    . "${CARGO_HOME:-$HOME/.cargo}/env"
fi
if ! command -v cargo >/dev/null; then
    echo "there is no cargo: install the stable toolchain from https://rustup.rs" >&2
    exit 1
fi
cargo build --release --package saker-cli --package saker-preload >&2
target=${CARGO_TARGET_DIR:-target}
echo "$(realpath "$target")/release/saker"

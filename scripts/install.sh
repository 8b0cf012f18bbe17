#!/usr/bin/env bash
# make install: the programs and the library to $PREFIX (/usr/local), below $DESTDIR if that is set.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${DESTDIR:-}${PREFIX:-/usr/local}
saker=$(scripts/build.sh)
install -D "$saker" "$prefix/bin/saker"
install -D -m 644 "$(dirname "$saker")/libsaker_preload.so" "$prefix/lib/libsaker_preload.so"
# mount(8) looks for it in /sbin and /usr/sbin.
mkdir -p "$prefix/sbin"
ln -sfn ../bin/saker "$prefix/sbin/mount.saker"
echo "$prefix/bin/saker, $prefix/sbin/mount.saker, $prefix/lib/libsaker_preload.so"

#!/usr/bin/env bash
# Runs a command with the kernel settings that all tests want, and puts them back: FUSE over io_uring,
# and what protects links, files and pipes in sticky directories (proc_sys_fs(5)). They are of the whole
# machine, so that `make test` leaves them alone, and says what it does not test without them.
#
#   scripts/kernel.sh COMMAND [ARGUMENT…]     as root or with sudo
set -euo pipefail

root=()
if [[ $EUID -ne 0 ]]; then root=(sudo); fi
were=()
restore() {
    local setting
    for setting in "${were[@]}"; do
        "${root[@]}" tee "${setting%%=*}" <<<"${setting#*=}" >/dev/null
    done
}
trap restore EXIT
for setting in /sys/module/fuse/parameters/enable_uring=Y \
    /proc/sys/fs/protected_{symlinks,regular,fifos}=1; do
    file=${setting%%=*}
    if [[ -e $file ]]; then
        were+=("$file=$(cat "$file")")
        "${root[@]}" tee "$file" <<<"${setting#*=}" >/dev/null
    fi
done
"$@"

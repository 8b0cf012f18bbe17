#!/usr/bin/env bash
# What an operation costs the MNode in system calls and allocations: counted by perf(1) while
# `saker bench meta` runs, and divided by the requests that the MNode says it has served.
#
#   scripts/costs.sh SAKER DIR [INFLIGHT] [SECONDS]
#
# SAKER is a release build; DIR is made, and wiped at the end. Needs root, perf and curl.
# Allocations are counted by uprobes, which cost a microsecond each time: the throughput meanwhile
# means nothing.
set -euo pipefail

saker=$1 dir=$2 inflight=${3:-512} seconds=${4:-6}
calls=(epoll_wait read recvfrom readv writev sendto sendmsg pwrite64 pwritev fdatasync futex)

finish() {
    perf probe -q -d 'probe_saker:*' 2>/dev/null || true
    "$saker" down --dir "$dir" --wipe >/dev/null 2>&1 || true
}
trap finish EXIT

"$saker" up --dir "$dir" --mnodes 1 --stores 1 >/dev/null
# Of mimalloc, which Rust allocates with; growing in place is none.
perf probe -q -x "$saker" malloc=mi_theap_malloc_aligned
perf probe -q -x "$saker" zalloc=mi_zalloc_aligned
mnode=$(cat "$dir"/run/mnode-0.pid)
http=$(awk -F'"' '/^http/ { print $2 }' "$dir"/etc/mnode-0.toml)

served() {
    curl -s "http://$http/metrics" | awk -F'[" ]' '/^saker_mnode_requests_total/ { print $2, $NF }'
}

events=raw_syscalls:sys_enter,probe_saker:malloc,probe_saker:zalloc
for call in "${calls[@]}"; do events+=,syscalls:sys_enter_$call; done
"$saker" bench meta --cluster "$dir" --threads 1 --inflight "$inflight" --seconds "$seconds" >/dev/null &
bench=$!
printf '%-9s %9s %7s %7s  %s\n' operation requests malloc syscalls 'of these'
while kill -0 $bench 2>/dev/null; do
    before=$(served) start=$(date +%s%N)
    counts=$(perf stat -x, -e "$events" -p "$mnode" -- sleep 1 2>&1 >/dev/null)
    # perf counts for a second, and takes a while to begin and to end.
    share=$(awk -v ns=$(($(date +%s%N) - start)) 'BEGIN { print 1e9 / ns }')
    after=$(served)
    awk -v share="$share" -F'[, ]' '
        part == 1 { was[$1] = $2; next }
        part == 2 { n = $2 - was[$1]; all += n; if (n > most) { most = n; op = $1 } next }
        { name = $3; sub(/.*sys_enter_?/, "", name); if ($3 ~ /probe_saker/) name = "malloc"
          if ($3 ~ /raw_syscalls/) name = "all"; count[name] += $1 }
        END {
            # Only where one kind is nearly all.
            if (most < 300 || most < 0.98 * all) exit
            all *= share
            printf "%-9s %9d %7.2f %7.3f ", op, most, count["malloc"] / all, count["all"] / all
            for (name in count)
                if (name != "malloc" && name != "all" && count[name] / all >= 0.001)
                    printf " %s %.3f", name, count[name] / all
            print ""
        }' part=1 <(echo "$before") part=2 <(echo "$after") part=3 <(echo "$counts")
done

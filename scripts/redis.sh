#!/usr/bin/env bash
# The library beside Redis, both durable, in one run: creates beside SET, looks beside GET.
#
#   scripts/redis.sh SAKER DIR [FILES] [INFLIGHT]
#
# SAKER is a release build; DIR is made, and wiped at the end. Redis (a Debian package) flushes its
# append-only file before it answers. It is asked before and after, once with as many connections
# as there are operations under way, and once with the same number in pipelines of 8 connections.
# An MNode keeps 2 x 65,536 decoded inodes here, so that of a million files it finds most in rows.
set -euo pipefail

saker=$1 dir=$2 files=${3:-1000000} inflight=${4:-512}
port=7399
mkdir -p "$dir/redis"

finish() {
    redis-cli -p $port shutdown nosave >/dev/null 2>&1 || true
    "$saker" down --dir "$dir/cluster" --wipe >/dev/null 2>&1 || true
    rm -rf "$dir"
}
trap finish EXIT

redis-server --port $port --dir "$dir/redis" --appendonly yes --appendfsync always --save '' \
    --auto-aof-rewrite-percentage 0 --daemonize yes --logfile "$dir/redis/log" >/dev/null
until redis-cli -p $port ping >/dev/null 2>&1; do sleep 0.1; done

redis() {
    local clients
    for clients in "$inflight" 8; do
        redis-benchmark -p $port -c "$clients" -P $((inflight / clients)) -n 1500000 -d 100 \
            -r "$files" -t set,get --csv |
            awk -F'"' -v clients="$clients" -v pipeline=$((inflight / clients)) \
                'NR > 1 { printf "redis %s, %d connections of %d: %d/s\n", $2, clients, pipeline, $4 }'
    done
}

redis
"$saker" up --dir "$dir/cluster" --mnodes 1 --stores 1 >/dev/null
"$saker" bench meta --cluster "$dir/cluster" --threads 1 --inflight "$inflight" --files "$files"
redis

#!/usr/bin/env bash
# Real programs on staged datasets, below libsaker_preload.so: each must print what it prints on the
# files that were packed, and end with the same status.
#
#   scripts/programs.sh SAKER [short|long] [PATTERN]    PATTERN: only programs whose names match it
#
# SAKER is the program under test; libsaker_preload.so is beside it. What is run is in
# scripts/programs/list.sh, on /usr/include among others: in its short form without directories of
# more than 32 MiB. Needs no root. As root, it runs as the user nobody, with /dev/fuse hidden.
set -euo pipefail

saker=$(realpath "$1")
form=${2:-short}
pattern=${3:-*}
here=$(realpath "$(dirname "$0")")
export PATH=/usr/bin:/bin LC_ALL=C TZ=UTC

if [[ $EUID -eq 0 ]]; then
    # Where nobody may read it.
    top=$(mktemp -d "${SAKER_SCRATCH:-${TMPDIR:-/tmp}}/saker-programs-XXXXXX")
    trap 'rm -rf "$top"' EXIT
    cp -r "$here/programs.sh" "$here/programs" "$here/images.py" "$saker" \
        "$(dirname "$saker")/libsaker_preload.so" "$top"
    mkdir -m 1777 "$top/tmp"
    touch "$top/hidden"
    chmod 755 "$top"
    chmod 0 "$top/hidden"
    # Agents end with the namespace of processes.
    unshare --mount --pid --fork --kill-child --mount-proc bash -c '
        if [[ -e /dev/fuse ]]; then mount --bind "$1/hidden" /dev/fuse; fi
        exec setpriv --reuid=65534 --regid=65534 --clear-groups \
            env TMPDIR="$1/tmp" SAKER_SCRATCH="$1/tmp" "$1/programs.sh" "$1/saker" "$2" "$3"
    ' bash "$top" "$form" "$pattern"
    exit
fi

library=$(dirname "$saker")/libsaker_preload.so
[[ -r $library ]] || { echo "there is no $library" >&2; exit 1; }
work=$(mktemp -d "${SAKER_SCRATCH:-${TMPDIR:-/tmp}}/saker-programs-XXXXXX")
export HOME=$work/home TREE=$work/tree PROGRAMS=$here/programs
mkdir "$HOME" "$TREE"
passed=0
failed=()
agents=()

finish() {
    local code=$?
    [[ ${#agents[@]} -eq 0 ]] || kill "${agents[@]}" || true
    wait
    if [[ $code -eq 0 ]]; then
        chmod -R u+w "$work"
        rm -rf "$work"
    else
        echo "files are kept in $work, unless it was removed with its user"
    fi
}
trap finish EXIT

# have MODULE: Debian's Python has it.
have() {
    /usr/bin/python3 -c "import $1" 2>/dev/null
}

# The files: headers, images, a packed repository, and what programs of Python keep.
make_tree() {
    local large=()
    if [[ $form == short ]]; then
        mapfile -t large < <(cd /usr/include && du -s --threshold=32M ./* | cut -f 2)
    fi
    mkdir "$TREE/include"
    tar -C /usr/include -c "${large[@]/#/--exclude=}" . | tar -C "$TREE/include" -x
    "$here/images.py" "$TREE/images" --classes 10 --images 50 --seed 1
    "$PROGRAMS/records.py" "$TREE"
    git init -q "$TREE/repository"
    local n
    for n in 1 2 3; do
        cp -r /usr/include/linux "$TREE/repository/$n"
        git -C "$TREE/repository" add .
        git -C "$TREE/repository" -c user.name=a -c user.email=a@b commit -qm "number $n"
    done
    git -C "$TREE/repository" gc -q
}

# agent NAME: starts one, and sets its port.
agent() {
    ports[$1]=$(/usr/bin/python3 -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    "$saker" serve agent --dir "$work/agent-$1" --listen "127.0.0.1:${ports[$1]}" \
        2>"$work/agent-$1.log" &
    agents+=($!)
    until [[ -S $work/agent-$1/agent.sock ]]; do
        kill -0 $! || { cat "$work/agent-$1.log"; return 1; }
        # Real time: another process starts.
        sleep 0.1
    done
}

# stage NAME NODES OPTION…: packs the tree, and stages it.
stage() {
    local name=$1 nodes=$2
    shift 2
    "$saker" dataset pack "$TREE" -o "$work/packed-$name" "$@"
    "$saker" dataset stage "$work/packed-$name" --name "$name@1" --nodes "$nodes" \
        --dir "$work/agent-a"
    # All are read from the nodes.
    rm -r "$work/packed-$name"
}

# on WHERE SCRIPT: runs it on the tree, or on a dataset.
on() {
    local ROOT=/saker/$1@1 OUT=$work/out-$1 code=0
    local preload=(LD_PRELOAD="$library" SAKER_AGENT_DIR="$work/agent-a")
    if [[ $1 == tree ]]; then ROOT=$TREE preload=(); fi
    mkdir "$OUT"
    (cd / && env "${preload[@]}" ROOT="$ROOT" OUT="$OUT" bash -c "$2") >"$work/said-$1" 2>&1 ||
        code=$?
    echo "status $code" >>"$work/said-$1"
    sed -i "s:$ROOT:ROOT:g; s:$OUT:OUT:g" "$work/said-$1"
    # Copies of directories that nobody may write.
    chmod -R u+w "$OUT"
    rm -rf "$OUT"
}

# check NAME SCRIPT: the same on the tree and on each dataset. $ROOT is one of these, $OUT a new
# directory.
check() {
    local name=$1 start=$SECONDS where bad=''
    # shellcheck disable=SC2254 # A pattern it is.
    case $name in $pattern) ;; *) return 0 ;; esac
    local runs=()
    for where in tree "${datasets[@]}"; do
        on "$where" "$2" &
        runs+=($!)
    done
    wait "${runs[@]}"
    if [[ $(tail -n 1 "$work/said-tree") != 'status 0' || $(wc -l <"$work/said-tree") -lt 2 ]]; then
        bad+="on the tree itself: $(tail -n 20 "$work/said-tree")"$'\n'
    fi
    for where in "${datasets[@]}"; do
        cmp -s "$work/said-tree" "$work/said-$where" && continue
        bad+="$where: $(diff "$work/said-tree" "$work/said-$where" | head -n 20 || true)"$'\n'
    done
    if [[ -z $bad ]]; then
        passed=$((passed + 1))
        echo "ok   $name ($((SECONDS - start)) s)"
    else
        failed+=("$name")
        echo "FAIL $name ($((SECONDS - start)) s)"
        printf '%s' "$bad" | cut -c 1-300 | sed 's/^/     /'
    fi
}

# count NAME: what the agent of this node has counted.
count() {
    "$saker" dataset top --dir "$work/agent-a" --json | /usr/bin/python3 -c 'import json, sys
print(json.load(sys.stdin)["nodes"][0]["counters"][sys.argv[1]])' "$1"
}

declare -A ports
make_tree
agent a
agent b
# What a process reads itself; what the agent expands; what comes from another node.
datasets=(plain small half)
a=127.0.0.1:${ports[a]} b=127.0.0.1:${ports[b]}
stage plain "$a" --partitions 1
stage small "$a" --partitions 4 --compress zstd
stage half "$a,$b" --partitions 4
echo "ready ($SECONDS s)"

# The tests see datasets and no other way to them.
[[ ! -e /saker && $EUID -ne 0 ]]
# shellcheck source=scripts/programs/list.sh
. "$PROGRAMS/list.sh"

# The agent has expanded files, and fetched files from the other.
for counter in saker_agent_local_read_bytes_total saker_agent_peer_read_bytes_total; do
    [[ $(count $counter) -gt 0 ]] || { echo "$counter is 0"; failed+=("$counter"); }
done
echo "programs: $passed passed, ${#failed[@]} failed ${failed[*]-}"
[[ ${#failed[@]} -eq 0 && $passed -gt 0 ]]

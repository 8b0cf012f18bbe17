#!/usr/bin/env bash
# Runs every command of docs/datasets.md on 4 nodes, in the order in which they are there.
#
#   scripts/manual.sh SAKER
#
# SAKER is the program under test; libsaker_preload.so is beside it. Needs root and /dev/fuse. Nodes
# are namespaces: node01 to node04 with a network, a host name and a local disk (/var/tmp) each, and
# meta1, where a cluster runs. They share a home directory, and $SCRATCH. Commands are run on node01
# by the user nobody. scripts/manual/slurm.py stands in for Slurm and Open MPI.
set -euo pipefail

saker=$(realpath "$1")
repository=$(realpath "$(dirname "$0")/..")

if [[ -z ${SAKER_MANUAL:-} ]]; then
    SAKER_MANUAL=$(mktemp -d "${SAKER_SCRATCH:-${TMPDIR:-/tmp}}/saker-manual-XXXXXX")
    export SAKER_MANUAL
    # All that was started ends with the namespace of processes, and mounts with theirs.
    code=0
    unshare --net --mount --uts --pid --fork --kill-child --mount-proc "$0" "$saker" || code=$?
    if [[ $code -eq 0 ]]; then
        rm -rf "$SAKER_MANUAL"
    else
        echo "files are kept in $SAKER_MANUAL"
    fi
    exit "$code"
fi

work=$SAKER_MANUAL
home=$work/home
subnet=10.77.0
nodes=(node01 node02 node03 node04)
trains=yes

# The hosts, and a switch between them.
make_network() {
    local n
    printf '127.0.0.1 localhost\n%s.254 meta1\n' "$subnet" >"$work/hosts"
    for n in 1 2 3 4; do echo "$subnet.$n node0$n" >>"$work/hosts"; done
    mount --bind "$work/hosts" /etc/hosts
    hostname meta1
    ip link set lo up
    ip link add saker0 type bridge
    ip addr add "$subnet.254/24" dev saker0
    ip link set saker0 up
}

# start_node NAME NUMBER: a node, with its daemon.
start_node() {
    local pid
    mkdir "$work/disk-$1"
    chmod 1777 "$work/disk-$1"
    unshare --net --mount --uts bash -c '
        hostname "$1"
        mount --bind "$2/disk-$1" /var/tmp
        ip link set lo up
        exec setpriv --reuid=65534 --regid=65534 --clear-groups \
            "$2/stand-ins/slurm.py" node "$2/nodes" "$1"
    ' bash "$1" "$work" &
    pid=$!
    echo "$pid" >"$work/$1.pid"
    until [[ -S $work/nodes/$1 ]]; do
        kill -0 "$pid"
        # Real time: another process starts.
        sleep 0.1
    done
    ip link add "up$2" type veth peer name eth0 netns "$pid"
    ip link set "up$2" master saker0 up
    on_node "$1" ip addr add "$subnet.$2/24" dev eth0
    on_node "$1" ip link set eth0 up
}

on_node() {
    nsenter --target "$(cat "$work/$1.pid")" --net --mount --uts "${@:2}"
}

# A cluster on meta1, mounted at ~/mnt of node01, with a directory of the user's.
start_cluster() {
    (
        cd "$work"
        "$saker" up --mnodes 2 --stores 2 --no-supervise
        # Clusters of one machine listen on its loopback address only.
        "$saker" down
        sed -i "s/127\.0\.0\.1/$subnet.254/g" .saker/cluster.toml .saker/etc/*.toml
        "$saker" up --no-supervise
    )
    on_node node01 "$saker" mount meta1:7400 "$home/mnt"
    on_node node01 mkdir "$home/mnt/data"
    on_node node01 chown 65534:65534 "$home/mnt/data"
}

# What is on the nodes: this repository, as far as the manual uses it.
make_files() {
    mkdir -p "$home/mnt" "$home/saker" "$work"/{nodes,scratch,stand-ins,bin,tmp}
    cp "$saker" "$(dirname "$saker")/libsaker_preload.so" "$work/bin"
    cp -r "$repository/Makefile" "$repository/scripts" "$home/saker"
    cp "$repository/scripts/manual/slurm.py" "$work/stand-ins"
    local name
    for name in srun sbatch mpirun; do ln -s slurm.py "$work/stand-ins/$name"; done
    if ! /usr/bin/python3 -c 'import torchvision' 2>/dev/null; then
        trains=no
        echo "note: there is no python3-torchvision: the manual's job reads files only"
        cp "$repository/scripts/manual/reads.py" "$home/saker/scripts/train.py"
    fi
    awk -f "$repository/scripts/manual/blocks.awk" "$repository/docs/datasets.md" >"$work/manual.sh"
    chown -R 65534:65534 "$home" "$work"/{nodes,scratch,tmp}
    chmod 755 "$work"
}

# As somebody would at a terminal of node01: a command that fails is named with its line.
run_manual() {
    on_node node01 setpriv --reuid=65534 --regid=65534 --clear-groups env -i \
        HOME="$home" USER=nobody LC_ALL=C TMPDIR="$work/tmp" SCRATCH="$work/scratch" \
        PATH="$home/.local/bin:$work/stand-ins:/usr/bin:/bin" \
        SAKER_BIN="$work/bin/saker" SAKER_NODES="$work/nodes" \
        MANUAL="$work/manual.sh" bash -c '
            cd ~/saker
            failed() {
                set +x
                cat slurm-*.out 2>/dev/null || true
                echo "docs/datasets.md:$1: failed: $2"
                exit 1
            }
            trap "failed \$LINENO \"\$BASH_COMMAND\"" ERR
            PS4="+ docs/datasets.md:\$LINENO: "
            set -eExo pipefail
            . "$MANUAL"
        ' 2>&1 | tee "$work/said"
}

make_network
make_files
for n in 1 2 3 4; do start_node "${nodes[n - 1]}" "$n"; done
start_cluster
run_manual
# Both jobs have trained, on all nodes, and have learned something.
if [[ $trains == yes ]]; then
    for rank in 0 1 2 3; do [[ $(grep -c "^rank $rank of 4: 125 images" "$work/said") -eq 2 ]]; done
    [[ $(grep -c '^accuracy 0\.[5-9]\|^accuracy 1' "$work/said") -eq 2 ]]
fi
lines=$(grep -o '^+* docs/datasets.md:[0-9]*:' "$work/said" | tr -d + | sort -u | wc -l)
echo "manual: $lines passed, 0 failed"

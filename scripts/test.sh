#!/usr/bin/env bash
# Everything that CI checks, in order. The last line is "N passed, N failed".
#
#   scripts/test.sh [check|short|long]   check is for every commit; short is what `make test` runs; long takes hours
#
# One profile (dev) is used throughout, so that nothing is compiled twice.
set -euo pipefail
cd "$(dirname "$0")/.."

form=${1:-short}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
logs=$CARGO_TARGET_DIR/test-logs
mkdir -p "$logs"
# A line "passed failed" of each stage.
counts=$logs/counts
: >"$counts"
# Stages that may run at once: of two cores one often waits for the other's clusters to start and die.
lanes=1
if [[ $(id -u) -eq 0 && $(nproc) -gt 1 ]]; then lanes=2; fi

# stage NAME COMMAND…: runs it and counts its tests, or itself if it has none.
stage() {
    local name=$1 start=$SECONDS code=0 log good=0 bad=0
    shift
    log=$logs/$name.log
    # Not as a condition: that would switch errexit off inside.
    set +e
    (set -e; "$@") >"$log" 2>&1
    code=$?
    set -e
    while read -r ok no; do
        good=$((good + ok)) bad=$((bad + no))
    done < <(sed -n 's/.*[^0-9]\([0-9]\+\) passed[;,] \([0-9]\+\) failed.*/\1 \2/p' "$log")
    if [[ $((good + bad)) -eq 0 && $code -eq 0 ]]; then good=1; fi
    if [[ $bad -eq 0 && $code -ne 0 ]]; then bad=1; fi
    echo "$good $bad" >>"$counts"
    local said
    if [[ $code -eq 0 ]]; then
        said=$(printf '%-12s ok    %4d s  %d passed' "$name" $((SECONDS - start)) "$good"
            grep -h '^note: ' "$log" | sed '1s/^/\n/' || true)
    else
        said=$(printf '%-12s FAIL  %4d s  %d passed, %d failed (%s)\n' \
            "$name" $((SECONDS - start)) "$good" "$bad" "$log"
            grep -v '^ *Compiling \|^test .* ok$' "$log" | tail -n 80 | sed 's/^/    /')
    fi
    echo "$said"
}

# beside NAME COMMAND…: a stage that runs beside others, as many as there are lanes. It has a network
# and mounts of its own where there is root, for clusters use the same ports.
beside() {
    while [[ $(jobs -rp | wc -l) -ge $lanes ]]; do
        wait -n || true
    done
    stage "$@" &
}

# together: waits for all that run beside each other.
together() {
    wait
}

# Before a command: gives it a network and mounts of its own, if that can be had.
apart=()
if [[ $lanes -gt 1 ]]; then
    apart=(unshare --net --mount sh -c 'ip link set lo up && exec "$@"' sh)
fi

alone() {
    "${apart[@]}" "$@"
}

deny() {
    if ! command -v cargo-deny >/dev/null; then
        echo "note: cargo-deny is not installed: licences and sources are not checked"
        return
    fi
    cargo deny --all-features check licenses bans sources
    # The advisory database is fetched, which not every machine can.
    local said
    if said=$(cargo deny --all-features check advisories 2>&1); then
        return
    fi
    echo "$said"
    [[ $said == *"failed to fetch"* ]] || return 1
    echo "note: the advisory database is out of reach: advisories are not checked"
}

edges() {
    cargo xtask deps
    cargo xtask circles
    cargo xtask sleeps
    cargo xtask words
    cargo xtask names
    cargo test -p saker-xtask
    # Each file of tests is run by some stage.
    local file
    for file in tools/sim/tests/*.rs; do
        grep -qE -- "(sim |[(|])$(basename "$file" .rs)([ |)]|\$)" scripts/test.sh ||
            { echo "no stage runs $file"; return 1; }
    done
}

# Everything at once, so that nothing is compiled twice; "directory kind name program" of each test
# program goes to a list.
build() {
    cargo build --workspace
    cargo test --workspace --no-run --message-format=json-render-diagnostics >"$logs/built"
    sed -n 's|.*"manifest_path":"\([^"]*\)/Cargo.toml","target":{"kind":\["\([a-z]*\)"[^}]*"name":"\([^"]*\)".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*|\1 \2 \3 \4|p' \
        "$logs/built" >"$logs/programs"
}

# programs DIRECTORY KIND NAME: test programs that were built; patterns of awk.
programs() {
    awk -v dir="^$PWD/$1\$" -v kind="^$2\$" -v name="^$3\$" \
        '$1 ~ dir && $2 ~ kind && $3 ~ name { print $1, $4 }' "$logs/programs"
}

# tests DIRECTORY KIND NAME [ARGUMENT…]: runs them where cargo would.
tests() {
    local found dir program status=0
    found=$(programs "$1" "$2" "$3")
    [[ -n $found ]] || { echo "there is no test program $1 $2 $3"; return 1; }
    shift 3
    while read -r dir program; do
        (cd "$dir" && CARGO_MANIFEST_DIR=$dir "${as[@]}" "$program" "$@") || status=1
    done <<<"$found"
    return $status
}

# sim TEST: one file of tools/sim/tests, as root where there is root.
sim() {
    local as=("${apart[@]}" "${root[@]}")
    tests tools/sim test "$1" --nocapture --test-threads=1
}

client() {
    tests tools/sim test '(client_names|client_data|client_retry|private|decoupled|saved)'
    SAKER_TEST_APPLY=nonvolatile_apply tests tools/sim test decoupled
}

simulation() {
    tests tools/sim test \
        '(namespace|namespace_random|file_data|protocol|exchange|acl|gone|links|ids|watch|merge)'
}

# Kills, power loss, other faults; "1 passed, 0 failed" for each.
torment() {
    alone "${root[@]}" env SAKER_BIN="$SAKER_BIN" "$CARGO_TARGET_DIR/debug/torment" "$@"
    echo "1 passed, 0 failed"
}

metrics() {
    local dir status=0
    dir=$(mktemp -d)
    mkdir "$dir/mnt"
    "${root[@]}" "$SAKER_BIN" up --dir "$dir/cluster" --no-supervise --mount "$dir/mnt"
    "$SAKER_BIN" serve agent --dir "$dir/agent" --listen 127.0.0.1:0 --http 127.0.0.1:7599 &
    local agent=$!
    until curl -sf http://127.0.0.1:7599/healthz > "$dir/health"; do sleep 0.1; done
    "$SAKER_BIN" status --json --cluster "$dir/cluster" | grep -o '"http": *"[^"]*"' |
        cut -d '"' -f 4 | xargs cargo xtask metrics 127.0.0.1:7599 || status=1
    kill "$agent" && wait "$agent" || status=1
    "${root[@]}" "$SAKER_BIN" down --dir "$dir/cluster" --wipe
    rm -r "$dir/agent" "$dir/health"
    rmdir "$dir/mnt" "$dir"
    return $status
}

# Its suite is fetched before it is without a network.
pjdfstest() {
    scripts/pjdfstest.sh install
    alone scripts/pjdfstest.sh "$SAKER_BIN"
}

# Before test programs.
as=()
root=()

# 200 seeds of the simulation.
simulate() {
    cargo run -p saker-sim --bin simulate -- --seeds 0..200 "$@"
    echo "200 passed, 0 failed"
}

finish() {
    local passed failed
    together
    read -r passed failed < <(awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }' "$counts")
    printf "all          %9d s\n" "$SECONDS"
    echo "$passed passed, $failed failed"
    [[ $failed -eq 0 ]]
    exit
}

docs() {
    RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --workspace --no-deps --document-private-items
}

scripts/packages.sh acl attr build-essential ca-certificates clang e2fsprogs faketime fio fuse3 git iproute2 nftables \
    rsync sqlite3 xfsprogs
rustup component add rustfmt clippy >/dev/null 2>&1 || true

stage fmt cargo fmt --all --check -- --color never
stage clippy cargo clippy --workspace --all-targets -- -D warnings
stage edges edges
if [[ $form == check ]]; then
    stage unit cargo test --workspace --no-fail-fast \
        --exclude saker-sim --exclude saker-specs --exclude saker-xtask
    stage world simulate
    stage mounts simulate --mounts
    finish
fi
scripts/packages.sh python3-numpy python3-pil
# Not every distribution has them; what is tested without them says so.
scripts/packages.sh python3-torch python3-torchvision || true
stage deny deny
stage docs docs
stage build build
export SAKER_BIN=$CARGO_TARGET_DIR/debug/saker

if [[ $form == long ]]; then
    export SAKER_SEEDS=${SAKER_SEEDS:-200} SAKER_OPS=${SAKER_OPS:-2000} SAKER_CRASH_ROUNDS=10
    export SAKER_KILL_ROUNDS=${SAKER_KILL_ROUNDS:-100}
    export SAKER_SIM_SEEDS=${SAKER_SIM_SEEDS:-100000}
    export SAKER_MERGE_NAMES=${SAKER_MERGE_NAMES:-1000000} SAKER_MERGE_KILLS=${SAKER_MERGE_KILLS:-50}
fi

stage unit tests 'crates/[a-z-]*' '.*' '.*'
# The protocols as models, explored without gaps.
beside specs tests tools/specs '.*' '.*'
beside sim-unit tests tools/sim lib '.*'
# Roles, network and crashes in one thread, in an order that a seed decides.
beside simulation simulation
# A whole cluster with its clients: thousands of seeds, crash points, rules broken on purpose.
beside world sim simulation
# The same below mounts, each on a model of the kernel.
beside mounts sim mounts

# Mounts and users need root.
if [[ $(id -u) -ne 0 ]] && sudo -n true 2>/dev/null; then
    root=(sudo -E)
fi
able=no
if [[ ($(id -u) -eq 0 || ${#root[@]} -gt 0) && -e /dev/fuse ]]; then
    able=yes
    export SAKER_REQUIRE_ROOT=1
else
    echo "note: no root or no /dev/fuse: mounts are not tested"
fi

# The longest first.
if [[ $able == yes ]]; then
    # Kernels have FUSE over io_uring switched off by default; the tests take them as they are.
    uring=/sys/module/fuse/parameters/enable_uring
    if [[ -e $uring && $(cat $uring) != Y ]]; then
        echo "note: $uring is off: mounts are tested over /dev/fuse only (scripts/kernel.sh)"
    fi
    beside shortcut sim shortcut
fi
# Of one file; through the library, and where there are mounts through those.
beside fsx sim fsx
beside model sim model_vs_local
beside client client
beside property sim property
beside decoupled sim decoupled_model
beside balance sim balance
beside garbage sim garbage
beside replicas sim replicas
beside members sim members
beside datasets sim datasets
beside agents sim agents
beside programs alone scripts/programs.sh "$SAKER_BIN" "$form"
if [[ $able == yes ]]; then
    beside metrics metrics
    beside full-disk sim full_disk
    beside mount sim mount_vs_local
    beside posix sim posix
    beside crash sim crash
    beside locks sim locks
    beside torment torment --seconds "$([[ $form == long ]] && echo 600 || echo 20)"
    beside power torment --power-loss "$([[ $form == long ]] && echo 20 || echo 2)"
    # By this seed each kind of fault comes within 30 s.
    beside faults torment --faults "$([[ $form == long ]] && echo 300 || echo 30)" --seed 733
    beside semantics sim semantics
    beside transports sim transports
    beside strong-none sim strong_none
    # Subtrees under policies, with real processes.
    beside policy-crash sim policy_crash
    beside merge-kills sim merge_kills
    beside rogue sim rogue
    beside two-mounts sim two_mounts
    beside local-reads sim local_reads
    beside stress sim stress
    # It makes networks of its own.
    beside manual "${root[@]}" scripts/manual.sh "$SAKER_BIN"
    beside pjdfstest pjdfstest
    beside workloads alone "${root[@]}" scripts/workloads.sh "$SAKER_BIN" "$form"
fi

finish

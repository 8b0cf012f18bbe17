"""Staged datasets on many nodes of one machine: `make nodes`.

Nodes are network namespaces around a router. Counts requests and bytes of epochs, measures their CPU
time, and draws a model of it to 512 nodes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "peers"))

import host  # noqa: E402 - of scripts/peers
import model  # noqa: E402
import report  # noqa: E402
from cluster import Cluster  # noqa: E402
from host import say  # noqa: E402
from job import Dataset, Job, Programs, make_files, pack, write_list  # noqa: E402
from network import Network  # noqa: E402

REPOSITORY = HERE.parents[1]


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    files: tuple[tuple[int, int, str], ...] = ((128, 512, "none"), (512, 128, "none"))
    """KiB of each, how many, and how they are compressed."""
    compressed: tuple[int, int, str] = (128, 512, "zstd")
    nodes: tuple[int, ...] = (1, 4, 16, 64)
    replicas: tuple[int, ...] = (1, 2)
    reads: int = 8192
    """Of an epoch or several, at least."""
    cluster_nodes: int = 16
    idle_seconds: float = 45
    """Before the epoch that must not ask the cluster. Clients of it renew leases within 40."""


QUICK = Plan(
    files=((128, 256, "none"), (512, 64, "none")),
    compressed=(128, 256, "zstd"),
    nodes=(1, 4, 16),
    reads=1024,
    cluster_nodes=4,
    idle_seconds=2,
)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/nodes", description=__doc__)
    parser.add_argument("--saker", type=Path, required=True, help="the program")
    parser.add_argument("--preload", type=Path, required=True, help="libsaker_preload.so")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs/benchmarks")
    parser.add_argument("--quick", action="store_true", help="a minute, up to 16 nodes")
    parser.add_argument("--cores", type=int, default=model.Machine.cores, help="of a model's node")
    parser.add_argument("--gbit", type=float, default=model.Machine.gbit, help="of their links")
    parser.add_argument("--round-trip-us", type=float, default=model.Machine.round_trip_us)
    return parser.parse_args()


@contextmanager
def scratch() -> Iterator[Path]:
    """Where datasets and agents are."""
    base = os.environ.get("SAKER_SCRATCH") or tempfile.gettempdir()
    work = Path(tempfile.mkdtemp(prefix="saker-nodes-", dir=base))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def running(job: Job) -> Iterator[Job]:
    """A job from its start to its end."""
    try:
        job.start()
        yield job
    finally:
        job.end()


def epochs(job: Job, dataset: Dataset, replicas: int, plan: Plan, more: list[str]) -> list[dict]:
    """Stages a dataset and reads it, until there are as many reads as are due."""
    nodes = len(job.machines)
    staged = job.stage(dataset, replicas, more)
    files = write_list(job.work / f"{dataset.name}.list", dataset)
    rounds = max(1, plan.reads // (nodes * dataset.files))
    about = {
        **{key: getattr(dataset, key) for key in ("kib", "codec", "files", "stored_bytes")},
        **{"nodes": nodes, "replicas": replicas, "origin": "cluster" if more else "directory"},
        "staged_from_origin_bytes": staged["origin_read_bytes"],
    }
    runs = [{**about, **job.epoch(dataset, files, seed)} for seed in range(rounds)]
    cpu = sum(map(report.cpu_us, runs)) / rounds
    seconds = sum(run["seconds"] for run in runs)
    say(f"{nodes} nodes, {replicas} replicas, {dataset.name}: {cpu:.0f} us a file, {seconds:.1f} s")
    return runs


def on_nodes(
    programs: Programs, network: Network, nodes: int, work: Path, plan: Plan
) -> list[dict]:
    """All datasets on so many nodes."""
    runs = []
    plans = [*plan.files, *([plan.compressed] if nodes == plan.nodes[-2] else [])]
    with running(Job(programs, network, nodes, work)) as job:
        for kind in plans:
            # A multiple of the nodes.
            dataset = pack(programs, work, kind, max(plan.nodes))
            for replicas in plan.replicas if nodes > 1 and kind[2] == "none" else (1,):
                runs += epochs(job, dataset, replicas, plan, [])
                job.unstage(dataset)
            shutil.rmtree(dataset.source)
    return runs


def without_cluster(programs: Programs, network: Network, work: Path, plan: Plan) -> dict:
    """An epoch of a dataset that was staged from a cluster: what the cluster has to do."""
    kib, files, _ = plan.files[0]
    nodes, tree = plan.cluster_nodes, work / "tree-cluster"
    say(f"{nodes} nodes stage from a cluster")
    make_files(tree, files, kib)
    cluster = Cluster(programs.saker, network.hub, work)
    try:
        cluster.start()
        cluster.run("fs", "put", "-r", tree, "/data")
        cluster.run("dataset", "freeze", "/data", "set@1", "--partitions", str(nodes))
        dataset = Dataset(kib, files, "none", "set@1", files * kib << 10, "set@1")
        with running(Job(programs, network, nodes, work)) as job:
            counts = [cluster.counted()]
            staged = job.stage(dataset, 1, ["--cluster", cluster.address])
            counts.append(cluster.counted())
            time.sleep(plan.idle_seconds)
            counts.append(cluster.counted())
            run = job.epoch(dataset, write_list(job.work / "list", dataset), 1)
            counts.append(cluster.counted())
    finally:
        cluster.end()
    names = {"mnode": "saker_mnode_requests_total", "store": "saker_store_reads_total"}
    parts = zip(("staging", "idle", "epoch"), counts, counts[1:])
    told = {part: {k: b[n] - a[n] for k, n in names.items()} for part, a, b in parts}
    say(f"the cluster has served: {told}")
    told |= {"nodes": nodes, "seconds": plan.idle_seconds, "run": run, "reads": run["reads"]}
    return told | {"staged_from_origin_bytes": staged["origin_read_bytes"]}


def about(args: argparse.Namespace, work: Path, plan: Plan) -> dict:
    """What figures depend on."""
    commit = ["git", "-C", REPOSITORY, "describe", "--always", "--dirty"]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": "make nodes" + (" NODES_OPTIONS=--quick" if args.quick else ""),
        "commit": host.command(commit, code=None).strip(),
        "build": args.saker.parent.name,
        "machine": asdict(host.Machine.look(work)),
        "plan": asdict(plan),
    }


def measure(args: argparse.Namespace, work: Path) -> None:
    """Everything."""
    plan = QUICK if args.quick else Plan()
    told, network, runs = about(args, work, plan), Network(), []
    epoch = work / "epoch"
    host.command(["cc", "-O2", "-o", epoch, HERE / "epoch.c"])
    programs = Programs(args.saker, args.preload, epoch)
    try:
        network.up(max(plan.nodes))
        for nodes in plan.nodes:
            runs += on_nodes(programs, network, nodes, work, plan)
        cluster = without_cluster(programs, network, work, plan)
    finally:
        network.down()
    machine = model.Machine(
        cores=args.cores, readers=args.cores, gbit=args.gbit, round_trip_us=args.round_trip_us
    )
    report.write(args.out, told, runs, cluster, machine)
    say(f"written: {args.out}/datasets.md")


def main() -> None:
    """Runs the command."""
    args = arguments()
    if os.geteuid() != 0:
        sys.exit("networks of their own need root")
    args.saker, args.preload = args.saker.resolve(), args.preload.resolve()
    # As Ctrl-C: everything is stopped on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with scratch() as work:
        try:
            measure(args, work)
        except host.Failed as why:
            sys.exit(str(why))
        except KeyboardInterrupt:
            sys.exit("interrupted")


main()

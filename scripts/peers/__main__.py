"""Saker beside other file systems on this machine: `make peers`.

Each system is installed, started, mounted, measured by the same programs (`saker bench --path`),
and stopped without a trace; then the next one. Every second round goes in reverse order.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.dont_write_bytecode = True

import frozen
import frozen_report
import host
import policies
import policies_report
import programs
import report
import traverse
import untar
import untar_report
from cephfs import CephFs, CephFsSync
from ext4 import Ext4
from glusterfs import GlusterFs
from host import Failed, Machine, say
from juicefs import JuiceFs, JuiceFsSync, JuiceFsUncached
from moosefs import MooseFs, MooseFsSync, MooseFsUncached
from passthrough import Passthrough, PassthroughCached
from saker import Saker, SakerCached, SakerFour
from system import System

SYSTEMS: dict[str, type[System]] = {
    system.name: system
    for system in (
        *(Saker, SakerFour, SakerCached, Ext4, Passthrough, PassthroughCached),
        *(MooseFs, MooseFsSync, MooseFsUncached, JuiceFs, JuiceFsSync, JuiceFsUncached),
        *(CephFs, CephFsSync, GlusterFs),
    )
}
REPOSITORY = Path(__file__).resolve().parents[2]
FIGURES = ("mechanisms", "merges", "rogue", "syncing")
"""Of policies."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/peers", description=__doc__)
    parser.add_argument("--saker", type=Path, required=True, help="a release build")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs/benchmarks")
    commands = parser.add_subparsers(dest="command", required=True)
    compare = commands.add_parser("compare", help="all programs on all systems")
    compare.add_argument("systems", nargs="*", metavar="SYSTEM", help=" ".join(SYSTEMS))
    compare.add_argument("--rounds", type=int, help="5, with --quick 2")
    compare.add_argument("--more", action="store_true", help="go on with the run in --out")
    compare.add_argument("--seconds", type=float, help="of each phase")
    compare.add_argument("--only", default="", help="programs with this in their names")
    compare.add_argument("--quick", action="store_true", help="2 short rounds: does it work?")
    tree = commands.add_parser("traverse", help="a tree, with limited memory of the client")
    tree.add_argument("systems", nargs="*", metavar="SYSTEM", help=" ".join(traverse.SYSTEMS))
    tree.add_argument("--files", type=int, default=100_000)
    tree.add_argument("--levels", type=int, default=7, help="of directories")
    tree.add_argument("--fanout", type=int, default=3)
    tree.add_argument("--size", type=int, default=4096)
    tree.add_argument("--threads", type=int, default=16)
    tree.add_argument("--budgets", default="10,25,50,100", help="percent")
    tree.add_argument("--seconds", type=float, help="of reading at most; the whole tree without")
    data = commands.add_parser("frozen", help="frozen datasets on one node, and beside it")
    data.add_argument("systems", nargs="*", metavar="SYSTEM", help=" ".join(frozen.SYSTEMS))
    data.add_argument("--quick", action="store_true", help="few files, one round")
    costs = commands.add_parser("policies", help="what policies of subtrees cost")
    costs.add_argument("figures", nargs="*", metavar="FIGURE", help=" ".join(FIGURES))
    costs.add_argument("--quick", action="store_true", help="few files, one round")
    trees = commands.add_parser("untar", help="an untar and a checkpoint, under policies and beside")
    trees.add_argument("systems", nargs="*", metavar="SYSTEM", help=" ".join(untar.SYSTEMS))
    trees.add_argument("--quick", action="store_true", help="few files, one round")
    return parser.parse_args()


def chosen(names: list[str], all_: dict[str, type[System]]) -> list[type[System]]:
    """Systems by their names; all if there are none."""
    if unknown := set(names) - set(all_):
        sys.exit(f"unknown: {' '.join(sorted(unknown))}; there are: {' '.join(all_)}")
    return [all_[name] for name in names or all_]


@contextmanager
def scratch() -> Iterator[Path]:
    """Where the systems keep their data."""
    base = os.environ.get("SAKER_SCRATCH") or tempfile.gettempdir()
    work = Path(tempfile.mkdtemp(prefix="saker-peers-", dir=base))
    work.chmod(0o755)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def running(kind: type[System], work: Path) -> Iterator[System]:
    """A system from its start to its end, whatever happens between."""
    system = kind(work)
    say(f"{system.name}: starting")
    try:
        system.up()
        yield system
    finally:
        # A second Ctrl-C must not leave processes behind.
        old = signal.signal(signal.SIGINT, signal.SIG_IGN)
        system.down()
        signal.signal(signal.SIGINT, old)


def about(work: Path, plan: object) -> dict:
    """What all results need to be understood."""
    commit = ["git", "-C", REPOSITORY, "describe", "--always", "--dirty"]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": host.command(commit, code=None).strip(),
        "machine": dataclasses.asdict(Machine.look(work)),
        "plan": report.plan_of(plan),
        "rounds": 1,
        "systems": {},
        "problems": [],
    }


def compare(args: argparse.Namespace, work: Path) -> None:
    """All programs on all systems, in turn and in reverse."""
    plan = programs.QUICK if args.quick else programs.Plan()
    plan = dataclasses.replace(plan, seconds=args.seconds or plan.seconds, only=args.only)
    if not plan.programs():
        sys.exit(f"--only {args.only}: no program has this in its name")
    rounds = args.rounds or (2 if args.quick else 5)
    order = [kind for kind in chosen(args.systems, SYSTEMS) if plan.programs_of(kind)]
    told, records = about(work, plan), []
    names = [kind.name for kind in order]
    first = 0
    if args.more:
        told, records = more(args.out, told, order, plan)
        first = told["rounds"]
    for n in range(first, first + rounds):
        say(f"round {n + 1} of {first + rounds}")
        for kind in order if n % 2 == 0 else reversed(order):
            one_visit(args.saker, kind, work, plan, n, told, records)
        told["rounds"] = n + 1
        # After each round, so that hours are not lost to the last one.
        records.sort(key=lambda record: names.index(record["system"]))
        if records:
            report.write(args.out, told, records)
            say(f"written: {args.out}/peers.md")


def more(
    out: Path, told: dict, order: list[type[System]], plan: programs.Plan
) -> tuple[dict, list[dict]]:
    """What an earlier run has found, to go on with: it must have measured the same. What it has of
    programs that do not measure a system any more is left out."""
    try:
        earlier, records = report.read(out, "peers")
    except (OSError, ValueError) as why:
        sys.exit(f"--more: {why}")
    # JSON knows no tuples.
    same = json.loads(json.dumps(told["plan"])), {kind.name for kind in order}
    if (earlier["plan"], set(earlier["systems"])) != same:
        sys.exit(f"--more: {out}/peers.json is of another plan or of other systems")
    wanted = {(kind.name, p.title) for kind in order for p in plan.programs_of(kind)}
    records = [r for r in records if (r["system"], r["program"]) in wanted]
    for key in ("date", "commit"):
        if told[key] not in earlier[key].split(", "):
            earlier[key] += f", {told[key]}"
    return earlier, records


def one_visit(
    program: Path,
    kind: type[System],
    work: Path,
    plan: programs.Plan,
    n: int,
    told: dict,
    records: list[dict],
) -> None:
    """One system in one round."""
    try:
        with running(kind, work) as system:
            told["systems"][kind.name] = {"version": system.version(), "about": kind.about}
            bench = programs.Bench(program, system, n + 1, plan)
            try:
                bench.all()
            finally:
                records += bench.records
                told["problems"] += bench.problems
    except (Failed, OSError) as why:
        left_out(kind.name, why, told)


def left_out(name: str, why: Exception, told: dict) -> None:
    """Says that a system could not be measured; the others go on."""
    say(f"{name}: LEFT OUT: {why}")
    told["problems"].append(f"{name} was left out: {why}")


def limited(args: argparse.Namespace, work: Path) -> None:
    """The traversal at all budgets."""
    plan = traverse.Plan(
        args.files,
        args.levels,
        args.fanout,
        args.size,
        args.threads,
        tuple(int(budget) for budget in args.budgets.split(",")),
        args.seconds,
    )
    told, records = about(work, plan), []
    for kind in chosen(args.systems, traverse.SYSTEMS):
        try:
            with running(kind, work) as system:
                told["systems"][kind.name] = {"version": system.version(), "about": kind.about}
                all_budgets(traverse.Traversal(args.saker, system, plan), told, records)
        except (Failed, OSError) as why:
            left_out(kind.name, why, told)
    if records:
        report.write_traverse(args.out, told, records)
        say(f"written: {args.out}/traverse.md")


def datasets(args: argparse.Namespace, work: Path) -> None:
    """Frozen datasets on one node: reading and packing."""
    plan = frozen.QUICK if args.quick else frozen.Plan()
    told = about(work, plan)
    library = args.saker.with_name("libsaker_preload.so")
    if not library.exists():
        sys.exit(f"there is no {library}: cargo build --release")
    kinds = chosen(args.systems, frozen.SYSTEMS)
    records, packed = frozen.measure(args.saker, library, kinds, work, plan, told)
    if records:
        frozen_report.write(args.out, told, records, packed)
        say(f"written: {args.out}/frozen.md")


def policy_costs(args: argparse.Namespace, work: Path) -> None:
    """All figures about policies."""
    plan = policies.QUICK if args.quick else policies.Plan()
    told, records = about(work, plan), []
    if unknown := set(args.figures) - set(FIGURES):
        sys.exit(f"unknown: {' '.join(sorted(unknown))}; there are: {' '.join(FIGURES)}")
    for figure in args.figures or FIGURES:
        kinds = [policies.Cluster, *([policies.FourMnodes] if figure == "merges" else [])]
        for kind in kinds:
            try:
                with running(kind, work) as cluster:
                    told["systems"][kind.name] = {"version": cluster.version(), "about": kind.about}
                    records += getattr(policies, figure)(cluster, plan)
            except (Failed, OSError) as why:
                left_out(f"{figure}, {kind.name}", why, told)
        if records:
            # After each, so that an hour is not lost to the last one.
            policies_report.write(args.out, told, records)
            say(f"written: {args.out}/policies.md")


def untars(args: argparse.Namespace, work: Path) -> None:
    """A source tree and a checkpoint on all systems."""
    plan = untar.QUICK if args.quick else untar.Plan()
    told, records = about(work, plan), []
    told["rounds"] = plan.rounds
    tree, archive = untar.prepare(work, plan)
    order = chosen(args.systems, untar.SYSTEMS)
    for n in range(plan.rounds):
        for kind in order if n % 2 == 0 else reversed(order):
            try:
                with running(kind, work) as system:
                    told["systems"][kind.name] = {"version": system.version(), "about": kind.about}
                    writing = untar.Writing(system, tree, archive, plan)
                    writing.all()
                    records += writing.records
            except (Failed, OSError, subprocess.SubprocessError) as why:
                left_out(kind.name, why, told)
    if records:
        untar_report.write(args.out, told, records)
        say(f"written: {args.out}/untar.md")


def all_budgets(traversal: traverse.Traversal, told: dict, records: list[dict]) -> None:
    """One system: its tree, then each budget, twice."""
    name = traversal.system.name
    say(f"  {name}: a tree of {traversal.plan.entries} entries")
    traversal.bench("--prepare")
    # There and back: what is fresh costs more, whatever the budget.
    for budget in (*traversal.plan.budgets, *reversed(traversal.plan.budgets)):
        try:
            record = traversal.at(budget)
        except Failed as why:
            say(f"  {name}, {budget}%: {why}")
            told["problems"].append(f"{name}, {budget}%: {why}")
            continue
        records.append(record)
        requests, mode = record["metadata_requests_per_op"], record["mode"]
        say(f"  {name}, {budget}%: {record['ops_per_s']:.0f}/s, requests {requests}, {mode or ''}")


def main() -> None:
    """Runs the command."""
    args = arguments()
    if os.geteuid() != 0:
        sys.exit("mounts and networks of their own need root")
    args.saker = args.saker.resolve()
    Saker.program = args.saker
    # As Ctrl-C: everything is stopped on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with scratch() as work:
        try:
            run = {
                "compare": compare,
                "traverse": limited,
                "frozen": datasets,
                "policies": policy_costs,
                "untar": untars,
            }
            run[args.command](args, work)
        except KeyboardInterrupt:
            sys.exit("interrupted")


main()

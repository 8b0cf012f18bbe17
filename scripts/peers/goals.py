"""What Saker aims at beside the others, and what a run says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

DURABLE = ("moosefs-sync", "juicefs-sync", "cephfs-sync")
UNCACHED = ("moosefs-uncached", "juicefs-uncached", "cephfs")
PEERS = ("moosefs", "moosefs-sync", "juicefs", "juicefs-sync", "cephfs", "cephfs-sync", "glusterfs")
CEPH = ("cephfs", "cephfs-sync")
AT_16, AT_128 = "metadata, 16 threads", "metadata, 128 threads"
# Each file looked at once, and then in a phase so short that what is kept for a second stays.
AGAIN = "metadata, second pass"
CHANGES = ("create", "unlink", "mkdir")
ONE_DIRECTORY, BURSTS = "one directory", "bursts of 4 KiB files"
KIB_4, KIB_64, KIB_112 = (f"files of {kib} KiB" for kib in (4, 64, 112))


@dataclass(frozen=True)
class Goal:
    """A figure of Saker in terms of the best of some others: at least, of CPU time at most."""

    what: str
    program: str
    phase: str
    others: tuple[str, ...]
    wanted: float
    system: str = "saker"
    figure: str = "ops_per_s"
    beside: str = ""
    """The others' phase, if it is another."""

    @property
    def at_most(self) -> bool:
        """Is less better?"""
        return self.figure == "cpu_us"

    def is_kept_by(self, ratio: float) -> bool:
        """Is that as much as is wanted, or as little?"""
        return ratio <= self.wanted if self.at_most else ratio >= self.wanted


def goals() -> Iterator[Goal]:
    """All that one run can tell."""
    for phase in CHANGES:
        yield Goal("equal durability", AT_16, phase, DURABLE, 2)
    # MooseFS ships with names and attributes kept for a second: once against Saker as it ships,
    # which keeps none, and once with the same caching.
    for name, system in (("as shipped", "saker"), ("as shipped, kept as long", "saker-cached")):
        for phase in CHANGES:
            cpu = Goal(f"CPU, {name}", AT_16, phase, ("moosefs",), 0.5, system, "cpu_us")
            yield from (cpu, Goal(name, AT_128, phase, ("moosefs",), 2, system))
    yield Goal("uncached", AT_16, "getattr", UNCACHED, 4)
    yield Goal("uncached", KIB_4, "read", UNCACHED, 4)
    for program in (KIB_64, KIB_112):
        yield Goal("cold", tree_of(program), "read, cold", ("ext4",), 0.8)
        yield Goal("warm", program, "read, again", PEERS, 2)
    for phase in (*CHANGES, "getattr", "open"):
        yield Goal("against CephFS", AT_16, phase, CEPH, 5.7)
    for program in (KIB_4, KIB_64, KIB_112):
        yield Goal("against CephFS", program, "read, again", CEPH, 5.7)
        yield Goal("against CephFS", tree_of(program), "read, cold", CEPH, 5.7)
    for program, phase in ((AT_16, "getattr"), (AT_16, "open"), (KIB_4, "read")):
        yield Goal("the FUSE bound", program, phase, ("passthrough",), 1)
    for program, phase in ((AGAIN, "getattr"), (AGAIN, "open"), (KIB_4, "read, again")):
        cached = ("passthrough-cached",)
        yield Goal("the FUSE bound, cached", program, phase, cached, 0.6, system="saker-cached")
    for phase in ("create", "getattr", "unlink"):
        shared, private = f"{phase}, shared", f"{phase}, private"
        yield Goal("of private ones", ONE_DIRECTORY, shared, ("saker",), 0.95, beside=private)
    for phase in ("write", "read"):
        for files in (10, 100):
            burst, mixed = f"{phase}, bursts of {files}", f"{phase}, bursts of 1"
            yield Goal("of mixed ones", BURSTS, burst, ("saker",), 0.95, beside=mixed)


def tree_of(program: str) -> str:
    """The program that reads files of the same size, cold."""
    return f"{program.replace('files', 'tree')} files"


def figures_of(records: list[dict], goal: Goal, system: str, phase: str) -> dict[int, float]:
    """Of each round; none if it was not measured, or with errors."""
    of = [
        r
        for r in records
        if (r["system"], r["program"], r["phase"]) == (system, goal.program, phase)
    ]
    return {} if any(r["errors"] for r in of) else {r["round"]: r[goal.figure] for r in of}


def table(records: list[dict]) -> list[str]:
    """Each goal whose figures are there. It is kept if both the ratio of the medians and the median
    of the rounds' ratios say so."""
    lines = ["| | what | best other | Saker / other | aim | | by round |", "|---" * 7 + "|"]
    for goal in goals():
        mine = figures_of(records, goal, goal.system, goal.phase)
        beside = goal.beside or goal.phase
        others = {name: figures_of(records, goal, name, beside) for name in goal.others}
        others = {name: figures for name, figures in others.items() if figures}
        if not mine or not others:
            continue
        best_of = min if goal.at_most else max
        best = best_of(others, key=lambda name: median(others[name].values()))
        ratio = median(mine.values()) / median(others[best].values())
        rounds = [mine[n] / others[best][n] for n in sorted(mine.keys() & others[best].keys())]
        kept = all(goal.is_kept_by(r) for r in (ratio, median(rounds)))
        aim = f"{'at most' if goal.at_most else 'at least'} {goal.wanted:g}"
        by_round = ", ".join(f"{ratio:.2f}" for ratio in rounds)
        lines.append(
            f"| {goal.what} | {goal.program}: {goal.phase} | {goal.beside or best} | {ratio:.2f} | {aim} "
            f"| {'yes' if kept else 'no'} | {by_round} |"
        )
    return lines

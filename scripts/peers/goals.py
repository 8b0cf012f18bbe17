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

    @property
    def at_most(self) -> bool:
        """Is less better?"""
        return self.figure == "cpu_us"


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
        yield Goal(
            "cold", program.replace("files", "tree") + " files", "read, cold", ("ext4",), 0.8
        )
        yield Goal("warm", program, "read, again", PEERS, 2)
    for program, phase in ((AT_16, "create"), (AT_16, "getattr"), (AT_16, "open"), (KIB_4, "read")):
        yield Goal("against CephFS", program, phase, CEPH, 5.7)
    for program, phase in ((AT_16, "getattr"), (AT_16, "open"), (KIB_4, "read")):
        yield Goal("the FUSE bound", program, phase, ("passthrough",), 1)
    for program, phase in ((AGAIN, "getattr"), (AGAIN, "open"), (KIB_4, "read, again")):
        cached = ("passthrough-cached",)
        yield Goal("the FUSE bound, cached", program, phase, cached, 0.6, system="saker-cached")


def figure_of(records: list[dict], goal: Goal, system: str) -> float | None:
    """Median of the rounds; none if it was not measured, or with errors."""
    of = [
        r
        for r in records
        if (r["system"], r["program"], r["phase"]) == (system, goal.program, goal.phase)
    ]
    if not of or any(r["errors"] for r in of):
        return None
    return median(r[goal.figure] for r in of)


def table(records: list[dict]) -> list[str]:
    """Each goal whose figures are there, kept or not."""
    lines = ["| | what | best other | Saker / other | aim | |", "|---|---|---|---|---|---|"]
    for goal in goals():
        mine = figure_of(records, goal, goal.system)
        others = {name: figure_of(records, goal, name) for name in goal.others}
        others = {name: figure for name, figure in others.items() if figure}
        if mine is None or not others:
            continue
        best = (min if goal.at_most else max)(others, key=others.__getitem__)
        ratio = mine / others[best]
        kept = ratio <= goal.wanted if goal.at_most else ratio >= goal.wanted
        aim = f"{'at most' if goal.at_most else 'at least'} {goal.wanted:g}"
        where = f"{goal.program}: {goal.phase}"
        lines.append(
            f"| {goal.what} | {where} | {best} | {ratio:.2f} | {aim} | {'yes' if kept else 'no'} |"
        )
    return lines

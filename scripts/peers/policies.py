"""Policies of subtrees (Cudele section 5): what each mechanism costs (Figures 6 and 9), merges of
journals of all sizes (8), clients that interfere (10), and merging while one goes on (11).

All clients work through LibFS (`saker bench policy`), one operation at a time.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import host
from host import say
from saker import Saker

SECONDS_MAX = 3600
"""Of one command."""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    creates: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    rounds: tuple[int, ...] = (3, 2, 1)
    """Of each number of creates."""
    merge_sizes: tuple[int, ...] = (1_000, 10_000, 20_000, 50_000, 100_000)
    merges: int = 5
    """Of each size."""
    clients: tuple[int, ...] = (1, 2, 4)
    client_creates: int = 20_000
    """Of each client beside a rogue one."""
    client_rounds: int = 2
    sync_intervals: tuple[str, ...] = ("100ms", "250ms", "500ms", "1s", "2s", "5s")
    sync_creates: int = 300_000
    sync_rounds: int = 1


QUICK = Plan(
    creates=(1_000, 10_000),
    rounds=(1, 1),
    merge_sizes=(1_000, 5_000),
    merges=2,
    clients=(1, 2),
    client_creates=2_000,
    client_rounds=1,
    sync_intervals=("100ms", "1s"),
    sync_creates=30_000,
    sync_rounds=1,
)

APPEND = "append_client_journal"
COMPOSITIONS: dict[str, tuple[str, str]] = {
    "strong/global": ("strong", "global"),
    "strong/none": ("strong", "none"),
    "weak/none": ("weak", "none"),
    "weak/local": ("weak", "local"),
    "invisible/none": ("invisible", "none"),
    "invisible/local": ("invisible", "local"),
    "invisible/global": ("invisible", "global"),
    "nonvolatile": (f"{APPEND}+nonvolatile_apply", "none"),
}
"""Consistency and durability."""


class Cluster(Saker):
    """A cluster without a mount."""

    name = "cluster"
    about = "1 coordinator, 1 MNode, 1 store; clients through LibFS"

    def mount(self) -> None:
        """There is none."""

    def wait_usable(self) -> None:
        """It says so itself."""

    def words(self, name: str, *more: str | int) -> list[str | Path]:
        """A command that measures a composition."""
        consistency, durability = COMPOSITIONS[name]
        words = [self.program, "bench", "policy", "--cluster", self.cluster, "--json"]
        words += ["--consistency", consistency, "--durability", durability]
        words += ["--allocated-inodes", "65536"]
        if durability == "local":
            words += ["--journal-dir", self.work / "journals"]
        return words + [str(word) for word in more]

    def holds(self) -> set[str]:
        """Names of directories whose subtrees are held."""
        words = [self.program, "policy", "list", "--cluster", self.cluster, "--json"]
        found = json.loads(host.command(words))
        return {one["directory"].rsplit("/", 1)[-1] for one in found if "hold" in one}

    def bench(self, name: str, *more: str | int) -> list[dict]:
        """Measures it; the phases. What it makes goes with the cluster."""
        said = host.command(self.words(name, "--keep", *more), seconds=SECONDS_MAX)
        return json.loads(said)["phases"]


class FourMnodes(Cluster):
    name = "cluster-4"
    about = "the same with 4 MNodes and 2 stores"
    mnodes, stores = 4, 2


def cpu_us(phase: dict) -> float:
    """CPU time for each file, of the client and all servers."""
    return sum(phase["cpu_us_per_op"].values())


def mechanisms(cluster: Cluster, plan: Plan) -> list[dict]:
    """All compositions, with each number of creates."""
    records = []
    for creates, rounds in zip(plan.creates, plan.rounds, strict=True):
        for round_ in range(rounds):
            order = list(COMPOSITIONS)
            for name in order if round_ % 2 == 0 else reversed(order):
                say(f"  {creates} creates, {name}")
                for phase in cluster.bench(name, "--files", creates):
                    records.append(
                        {
                            "figure": "mechanisms",
                            "creates": creates,
                            "composition": name,
                            "phase": phase["phase"],
                            "seconds": phase["seconds"],
                            "cpu_us": cpu_us(phase),
                        }
                    )
    return records


def merges(cluster: Cluster, plan: Plan) -> list[dict]:
    """Journals of all sizes, one after the other, each of a directory of its own."""
    records = []
    for size in plan.merge_sizes:
        say(f"  {cluster.name}: {plan.merges} merges of {size} creates")
        for phase in cluster.bench("weak/none", "--files", size, "--rounds", plan.merges):
            if phase["phase"] == "merge":
                record = {"figure": "merges", "system": cluster.name, "creates": size}
                records.append({**record, "seconds": phase["seconds"], "cpu_us": cpu_us(phase)})
    return records


def together(
    commands: Sequence[Sequence[str | Path]], begun: Callable[[], None]
) -> list[dict]:
    """Runs all at once; what each says. `begun` is called when they run."""
    children = [
        subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for words in commands
    ]
    begun()
    said = [child.communicate(timeout=SECONDS_MAX) for child in children]
    for child, words, (_, errors) in zip(children, commands, said, strict=True):
        if child.returncode:
            raise host.Failed(f"{' '.join(map(str, words))}: {errors.decode(errors='replace')}")
    return [json.loads(text) for text, _ in said]


def rogue(cluster: Cluster, plan: Plan) -> list[dict]:
    """Clients in directories of their own; beside them, or not, one that creates in all of these, and
    one that merges a decoupled subtree."""
    records = []
    for clients in plan.clients:
        for round_ in range(plan.client_rounds):
            cases = ["isolated", "block", "allow", "merging"]
            for case in cases if round_ % 2 == 0 else reversed(cases):
                records += one_rogue(cluster, plan, clients, case, f"{clients}-{round_}-{case}")
    return records


def one_rogue(
    cluster: Cluster, plan: Plan, clients: int, case: str, mark: str
) -> list[dict]:
    """One case."""
    say(f"  {clients} clients, {case}")
    names = [f"client-{mark}-{n}" for n in range(clients)]
    blocks = "allow" if case == "allow" else "block"
    more = ["--files", plan.client_creates, "--interfere-policy", blocks, "--keep"]
    commands = [cluster.words("strong/global", *more, "--name", name) for name in names]
    others: list[subprocess.Popen[bytes]] = []

    def disturb() -> None:
        if case in ("block", "allow"):
            # Whoever comes first would hold the subtree.
            if case == "block":
                host.wait_until(
                    "holds of the clients", 60, lambda: cluster.holds().issuperset(names)
                )
            words = [cluster.program, "bench", "policy", "--cluster", cluster.cluster, "--json"]
            words += ["--into", ",".join(names), "--seconds", str(SECONDS_MAX)]
            others.append(started(words))
        elif case == "merging":
            more = ("--files", 10_000, "--rounds", 100_000)
            others.append(started(cluster.words("weak/none", *more)))

    try:
        said = together(commands, disturb)
    finally:
        for other in others:
            other.kill()
            other.wait()
    creates = [next(p for p in one["phases"] if p["phase"] == "create") for one in said]
    return [
        {
            "figure": "rogue",
            "clients": clients,
            "case": case,
            "seconds": create["seconds"],
            "cpu_us": create["cpu_us_per_op"]["client"],
        }
        for create in creates
    ]


def started(words: Sequence[str | Path]) -> subprocess.Popen[bytes]:
    """A client in the background."""
    return subprocess.Popen(
        [str(word) for word in words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def syncing(cluster: Cluster, plan: Plan) -> list[dict]:
    """One client that merges in the background at all intervals, and never."""
    records = []
    for round_ in range(plan.sync_rounds):
        intervals = ["none", *plan.sync_intervals]
        for interval in intervals if round_ % 2 == 0 else reversed(intervals):
            say(f"  merging every {interval}")
            more = ["--files", plan.sync_creates, "--sync-interval", interval]
            phase = cluster.bench("weak/none", *more)[0]
            record = {"figure": "syncing", "interval": interval}
            records.append({**record, "seconds": phase["seconds"], "cpu_us": cpu_us(phase)})
    return records

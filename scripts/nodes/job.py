"""A training job: an agent on each node, a staged dataset, and epochs that are counted."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from host import Failed, command, cpu_us, remove_tree, say, wait_until
from network import Machine, Network

COUNTED = (
    *("opens", "open_failures", "peer_reads", "peer_read_bytes", "origin_reads"),
    *("origin_read_bytes", "read_failures", "damaged_reads", "local_reads", "staged_bytes"),
)
"""Counters of agents, without `saker_agent_` and `_total`."""


@dataclass
class Programs:
    """What is run."""

    saker: Path
    preload: Path
    epoch: Path


@dataclass
class Dataset:
    """Files that were packed."""

    kib: int
    """Of each file, as programs see it."""
    files: int
    codec: str
    source: str
    """A directory, or a name in a cluster."""
    stored_bytes: int
    """Of all files in the partitions."""
    name: str


class Job:
    """Agents on machines, until `end`."""

    def __init__(self, programs: Programs, network: Network, nodes: int, work: Path) -> None:
        self.programs = programs
        self.network = network
        self.machines = network.machines[:nodes]
        self.work = work / f"job-{nodes}"
        self.agents: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Starts the agents."""
        self.work.mkdir()
        for n, machine in enumerate(self.machines):
            words = [*machine.enter, self.programs.saker, "serve", "agent"]
            words += ["--listen", machine.agent, "--dir", self.dir(n)]
            with (self.work / f"agent-{n}.log").open("wb") as log:
                agent = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self.agents.append(agent)
        sockets = [self.dir(n) / "agent.sock" for n in range(len(self.machines))]
        wait_until("agents", 60, lambda: all(socket.exists() for socket in sockets))

    def end(self) -> None:
        """Ends the agents, and removes what they have staged."""
        for agent in self.agents:
            agent.terminate()
        for agent in self.agents:
            agent.wait()
        remove_tree(self.work)

    def dir(self, n: int) -> Path:
        """Of an agent."""
        return self.work / f"node-{n}"

    @property
    def list(self) -> str:
        """All nodes."""
        return ",".join(machine.agent for machine in self.machines)

    def stage(self, dataset: Dataset, replicas: int, more: list[str]) -> Counter[str]:
        """Stages a dataset; what that took."""
        before = self.counters()
        words = [self.programs.saker, "dataset", "stage", dataset.source, "--name", dataset.name]
        words += ["--nodes", self.list, "--self", self.machines[0].agent, "--dir", self.dir(0)]
        words += ["--replicas", str(replicas), *more]
        self.run(words)
        return self.counters() - before

    def unstage(self, dataset: Dataset) -> None:
        """Off all nodes."""
        words = ["dataset", "unstage", dataset.name, "--nodes", self.list]
        self.run([self.programs.saker, *words])

    def run(self, words: list[str | Path]) -> str:
        """A command on the first node."""
        return command([*self.machines[0].enter, *words])

    def counters(self) -> Counter[str]:
        """Of all agents together."""
        words = [self.programs.saker, "dataset", "top", "--nodes", self.list, "--json"]
        total: Counter[str] = Counter()
        for node in json.loads(self.run(words))["nodes"]:
            for name in COUNTED:
                total[name] += node["counters"][f"saker_agent_{name}_total"]
        return total

    def cpu_us(self) -> float:
        """CPU time of all agents."""
        return sum(cpu_us(agent.pid) for agent in self.agents)

    def epoch(self, dataset: Dataset, files: Path, seed: int) -> dict[str, float]:
        """Every node reads every file once, in an order of its own."""
        with self.readers(dataset, files, seed) as readers:
            before = self.counters(), self.network.sent_bytes(len(self.machines)), self.cpu_us()
            begin = time.monotonic()
            for reader in readers:
                reader.stdin.write(b"\n")
                reader.stdin.close()
            told = [json.loads(reader.stdout.readline() or b"null") for reader in readers]
            wall, cpu = time.monotonic() - begin, self.cpu_us() - before[2]
            sent = self.network.sent_bytes(len(self.machines)) - before[1]
        if None in told:
            raise Failed("a reader has failed: see above")
        counts = self.counters()
        counts.subtract(before[0])
        return {
            "reads": sum(reader["files"] for reader in told),
            "bytes": sum(reader["bytes"] for reader in told),
            "reader_cpu_us": sum(reader["cpu_us"] for reader in told),
            "agent_cpu_us": cpu,
            "sent_bytes": sent,
            "seconds": wall,
            **counts,
        }

    @contextmanager
    def readers(
        self, dataset: Dataset, files: Path, seed: int
    ) -> Iterator[list[subprocess.Popen[bytes]]]:
        """A process on each node that has its list and waits."""
        readers = [self.reader(machine, n, files, seed) for n, machine in enumerate(self.machines)]
        try:
            for reader in readers:
                if reader.stdout.readline() != b"ready\n":
                    raise Failed(f"a reader of {dataset.name} has failed: see above")
            yield readers
        finally:
            for reader in readers:
                if reader.stdin and not reader.stdin.closed:
                    reader.stdin.close()
                reader.wait()

    def reader(self, machine: Machine, n: int, files: Path, seed: int) -> subprocess.Popen[bytes]:
        """A process that reads below the preload library."""
        env = [f"LD_PRELOAD={self.programs.preload}", f"SAKER_AGENT_DIR={self.dir(n)}"]
        words = [*machine.enter, "env", *env, self.programs.epoch, files, str(seed * 1000 + n)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def make_files(root: Path, files: int, kib: int) -> None:
    """Files that can be compressed to half, each with its number at both ends."""
    for n in range(files):
        place = root / f"{n % 32:02}"
        place.mkdir(parents=True, exist_ok=True)
        number = n.to_bytes(8, "little")
        half = kib << 9
        data = bytearray(os.urandom(half) + bytes(half))
        data[:8] = data[-8:] = number
        (place / f"{n:05}").write_bytes(data)


def write_list(path: Path, dataset: Dataset) -> Path:
    """The files as programs see them."""
    size = dataset.kib << 10
    lines = (
        f"{n} {size} /saker/{dataset.name}/{n % 32:02}/{n:05}\n" for n in range(dataset.files)
    )
    path.write_text("".join(lines))
    return path


def pack(programs: Programs, work: Path, plan: tuple[int, int, str], partitions: int) -> Dataset:
    """Makes files and packs them."""
    kib, files, codec = plan
    name = f"f{kib}-{codec}"
    say(f"{files} files of {kib} KiB, {codec}")
    tree, to = work / f"tree-{kib}", work / f"packed-{name}"
    if not tree.exists():
        make_files(tree, files, kib)
    words = ["--partitions", str(partitions), "--compress", codec, "-o", to]
    command([programs.saker, "dataset", "pack", tree, *words])
    return Dataset(kib, files, codec, str(to), stored(programs, to), f"{name}@1")


def stored(programs: Programs, packed: Path) -> int:
    """Bytes of files in the partitions, without headers and tables."""
    items = json.loads(command([programs.saker, "dataset", "list", packed, "--json"]))
    return sum(item.get("stored", 0) for item in items)

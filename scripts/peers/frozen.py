"""Frozen datasets on one node (FanStore sections 6.3, 6.4.1, 6.6): the same files, read by the same
program from a dataset under the preload library, through mounts, and from the local disk."""

from __future__ import annotations

import json
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import host
from ext4 import Ext4
from host import Failed, say
from passthrough import Passthrough
from saker import Saker
from system import System

KIB, MIB = 1 << 10, 1 << 20
DATASET = "figure@1"
ADDRESS = "127.0.0.1"
PORT = 7461
"""Of the first agent."""
RANDOM_SHARE = 0.34
"""Of a file: bytes that do not compress. The paper's data compress 2.8 times (section 6.6)."""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    sizes: tuple[int, ...] = (128 * KIB, 512 * KIB, 2 * MIB, 8 * MIB)
    bytes_per_size: int = 256 * MIB
    threads: int = 2
    """That read."""
    warm_rounds: int = 3


QUICK = Plan(bytes_per_size=32 * MIB, warm_rounds=1)


class Reader(System):
    """A system that keeps a tree which is read, and never changed."""

    own_network = False
    program: Path
    """Saker's release build."""
    library: Path
    """Its preload library."""

    def fill(self, tree: Path) -> None:
        """Takes in the files of a directory."""
        host.command(["cp", "-r", tree, self.tree])

    @property
    def tree(self) -> Path:
        """Where the files are seen."""
        return self.point / "tree"

    def environment(self) -> dict[str, str]:
        """Of the program that reads."""
        return {}

    def forget(self) -> None:
        """Before cold reads."""
        self.drop_caches()

    def wait_usable(self) -> None:
        """Not all can be written."""


class Disk(Reader, Ext4):
    about = "a directory of the local disk"


class Fuse(Reader, Passthrough):
    name = "libfuse"
    about = "libfuse's example passthrough (high-level) over the local disk"


class Mounted(Reader, Saker):
    name = "mount"
    about = "a mount of a cluster on this machine; the files are as they were written"

    def fill(self, tree: Path) -> None:
        put = [self.program, "fs", "put", "-r", tree, "/tree", "--cluster", self.cluster]
        host.command(put, seconds=600)

    def forget(self) -> None:
        self.unmount()
        self.drop_caches()
        self.mount()


class MountedFrozen(Mounted):
    name = "mount-frozen"
    about = "the same mount; the dataset that was frozen from these files"

    def fill(self, tree: Path) -> None:
        super().fill(tree)
        scratch = self.work / "scratch"
        scratch.mkdir()
        freeze = [self.program, "dataset", "freeze", "/tree", DATASET, "--scratch", scratch]
        host.command([*freeze, "--cluster", self.cluster], seconds=600)

    @property
    def tree(self) -> Path:
        return self.point / ".datasets" / DATASET


class Preload(Reader):
    name = "preload"
    about = "a staged dataset of this node under libsaker_preload.so"
    packages = ()
    compress = "none"
    nodes = 1

    def install(self) -> None:
        """It is built."""

    def mount(self) -> None:
        """There is no mount."""

    def version(self) -> str:
        return host.command([self.program, "--version"]).strip()

    def start(self) -> None:
        for n in range(self.nodes):
            listen = f"{ADDRESS}:{PORT + n}"
            words = [self.program, "serve", "agent", "--dir", self.dir(n), "--listen", listen]
            self.spawn(*words)
        sockets = [self.dir(n) / "agent.sock" for n in range(self.nodes)]
        host.wait_until("agents", 20, lambda: all(socket.exists() for socket in sockets))

    def dir(self, n: int) -> Path:
        """Of an agent."""
        return self.work / f"agent-{n}"

    def fill(self, tree: Path) -> None:
        packed = self.work / "packed"
        pack = [self.program, "dataset", "pack", tree, "--compress", self.compress, "-o", packed]
        host.command(pack, seconds=600)
        nodes = ",".join(f"{ADDRESS}:{PORT + n}" for n in range(self.nodes))
        stage = [self.program, "dataset", "stage", packed, "--name", DATASET, "--nodes", nodes]
        host.command([*stage, "--dir", self.dir(0), "--self", f"{ADDRESS}:{PORT}"], seconds=600)

    @property
    def tree(self) -> Path:
        return Path("/saker") / DATASET

    def environment(self) -> dict[str, str]:
        # The partition is the first node's: the last one reads all from it.
        return {"LD_PRELOAD": str(self.library), "SAKER_AGENT_DIR": str(self.dir(self.nodes - 1))}

    def label(self, words: list[str]) -> str:
        return "agent"


class PreloadLz4(Preload):
    name = "preload-lz4"
    about = "the same, compressed by lz4"
    compress = "lz4"


class PreloadZstd(Preload):
    name = "preload-zstd"
    about = "the same, compressed by zstd"
    compress = "zstd"


class Remote(Preload):
    name = "remote"
    about = "the same with two agents on this machine: all files are the other one's"
    nodes = 2


class RemoteLz4(Remote):
    name = "remote-lz4"
    about = "the same, compressed by lz4"
    compress = "lz4"


class RemoteZstd(Remote):
    name = "remote-zstd"
    about = "the same, compressed by zstd"
    compress = "zstd"


SYSTEMS: dict[str, type[Reader]] = {
    system.name: system
    for system in (
        *(Disk, Preload, Mounted, MountedFrozen, Fuse),
        *(PreloadLz4, PreloadZstd, Remote, RemoteLz4, RemoteZstd),
    )
}


def make_tree(tree: Path, size: int, total: int) -> int:
    """Files that compress as the paper's; how many."""
    tree.mkdir(parents=True)
    chance = random.Random(size)
    count = max(1, total // size)
    for n in range(count):
        piece = 4 * KIB
        noise = chance.randbytes(int(size * RANDOM_SHARE))
        text = chance.randbytes(64) * (piece // 64)
        keep = int(piece * RANDOM_SHARE)
        with (tree / f"{n:06}.bin").open("wb") as file:
            for at in range(0, size, piece):
                begin = at // piece * keep
                file.write((noise[begin : begin + keep] + text)[:piece].ljust(piece, b" "))
    return count


def cpu_seconds(pids: list[str]) -> float:
    """What processes have used so far, each as NAME:PID."""
    return sum(host.cpu_us(int(pid.rsplit(":", 1)[1])) for pid in pids) / 1e6


class Reading:
    """One system and files of one size."""

    def __init__(self, reader: Path, system: Reader, size: int, plan: Plan) -> None:
        self.reader = reader
        self.system = system
        self.size = size
        self.plan = plan

    def once(self, seed: int, *more: str) -> dict:
        """Reads all files; what the program says, with the CPU time of the system added."""
        system = self.system
        before = cpu_seconds(system.pids())
        words = [self.reader, system.tree, self.plan.threads, seed, *more]
        said = json.loads(host.command(words, env=system.environment(), seconds=600))
        said["cpu_s"] += cpu_seconds(system.pids()) - before
        return said

    def record(self, phase: str, said: dict) -> dict:
        """For the report."""
        files = said["files"]
        return {
            "system": self.system.name,
            "size": self.size,
            "phase": phase,
            "files_per_s": files / said["seconds"],
            "mib_per_s": said["bytes"] / said["seconds"] / MIB,
            "cpu_us": said["cpu_s"] / files * 1e6,
        }

    def all(self, files: int, sum_wanted: int) -> list[dict]:
        """Cold, warm, and once more to compare what is read."""
        self.system.forget()
        said = [("cold", self.once(1))]
        said += [("warm", self.once(n + 2)) for n in range(self.plan.warm_rounds)]
        for _, one in said:
            if (one["files"], one["bytes"]) != (files, files * self.size):
                raise Failed(f"{self.system.name}: {one['files']} files, {one['bytes']} bytes")
        if self.once(99, "sum")["sum"] != sum_wanted:
            raise Failed(f"{self.system.name}: other bytes than were written")
        return [self.record(phase, one) for phase, one in said]


def build_reader(work: Path) -> Path:
    """The program that reads."""
    program = work / "read"
    source = Path(__file__).with_name("read.c")
    host.command(["gcc", "-O2", "-pthread", source, "-o", program])
    return program


def packing(saker: Path, tree: Path, work: Path) -> list[dict]:
    """Seconds to make one file of a tree: by tar, and packed."""
    size = sum(entry.stat().st_size for entry in tree.iterdir())
    pack = [saker, "dataset", "pack", tree]
    commands = {
        "tar": ["tar", "-cf", work / "made", "-C", tree, "."],
        **{how: [*pack, "-c", how, "-o", work / "made"] for how in ("none", "lz4", "zstd")},
    }
    records = []
    for name, words in commands.items():
        host.drop_caches()
        start = time.monotonic()
        host.command(words, seconds=600)
        # tar leaves its file to the kernel; pack has flushed its own.
        host.command(["sync", "-f", work / "made"])
        took = time.monotonic() - start
        made = host.command(["du", "-sb", work / "made"]).split()[0]
        records.append({"how": name, "seconds": took, "bytes": size, "made": int(made)})
        host.remove_tree(work / "made")
    return records


def measure(
    saker: Path, library: Path, kinds: list[type[Reader]], work: Path, plan: Plan, told: dict
) -> tuple[list[dict], list[dict]]:
    """All systems with all sizes; records of reading, and of packing."""
    Reader.program, Reader.library = saker, library
    reader = build_reader(work)
    records, packed = [], []
    for size in plan.sizes:
        tree = work / "tree"
        files = make_tree(tree, size, plan.bytes_per_size)
        words = [reader, tree, plan.threads, 0, "sum"]
        wanted = json.loads(host.command(words))["sum"]
        packed += [{**one, "size": size} for one in packing(saker, tree, work)]
        for kind in kinds:
            system = kind(work)
            say(f"{size // KIB} KiB: {system.name}")
            try:
                system.up()
                told["systems"][kind.name] = {"version": system.version(), "about": kind.about}
                system.fill(tree)
                records += Reading(reader, system, size, plan).all(files, wanted)
            except (Failed, OSError) as why:
                say(f"{system.name}: LEFT OUT: {why}")
                told["problems"].append(f"{system.name}, {size // KIB} KiB: {why}")
            finally:
                system.down()
        shutil.rmtree(tree)
    return records, packed

"""An untar and a checkpoint under policies (Cudele sections 1 and 5), beside other file systems: a
source tree of 10,000 files by tar(1), and a checkpoint of 200 files as PyTorch writes it."""

from __future__ import annotations

import os
import random
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import host
from ext4 import Ext4
from frozen import cpu_seconds
from host import Failed, say
from moosefs import MooseFs
from saker import Saker
from system import System

KIB, MIB = 1 << 10, 1 << 20
SECONDS_MAX = 1200


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    files: int = 10_000
    dirs: int = 700
    shards: int = 200
    """Files of a checkpoint."""
    shard_bytes: int = MIB
    rounds: int = 3


QUICK = Plan(files=500, dirs=40, shards=20, rounds=1)


class Writer(System):
    """A system into which trees are written."""

    @property
    def place(self) -> Path:
        """Where the trees come."""
        return self.point / "work"

    def prepare(self) -> None:
        """Makes that."""
        self.place.mkdir()

    def publish(self) -> None:
        """From now on everybody sees what was written, and sync(1) has made it durable."""
        host.command(["sync", "--file-system", self.place], seconds=SECONDS_MAX)


class Disk(Writer, Ext4):
    about = "a directory of the local disk; nothing is flushed but what the program flushes"


class Moose(Writer, MooseFs):
    about = "as shipped: 1 master, 1 chunk server; changelog written in the background"


class Policy(Writer, Saker):
    """A mount, and a directory with a policy."""

    consistency = "strong"
    durability = "global"

    def mount(self) -> None:
        if self.durability == "local":
            self.mount_with(f"journal_dir={self.work / 'journals'}")
        else:
            self.mount_with("")

    def prepare(self) -> None:
        super().prepare()
        keys = ["--consistency", self.consistency, "--durability", self.durability]
        keys += ["--allocated-inodes", "16384"]
        self.run(self.program, "policy", "set", self.place, *keys)

    def publish(self) -> None:
        if self.consistency != "strong":
            self.run(self.program, "policy", "merge", self.place, seconds=SECONDS_MAX)
        # A FUSE mount never hears of sync(1) without a file.
        host.command(["sync", self.place])


class StrongGlobal(Policy):
    name = "strong-global"
    about = "a mount; 1 coordinator, 1 MNode, 1 store; each answer leaves after a flush"


class StrongNone(Policy):
    name = "strong-none"
    about = "the same; the flush follows within 50 ms"
    durability = "none"


class WeakLocal(Policy):
    name = "weak-local"
    about = "the same; the mount keeps a journal on its disk, and merges"
    consistency, durability = "weak", "local"


class InvisibleNone(Policy):
    name = "invisible-none"
    about = "the same; in the mount's memory until it is merged"
    consistency, durability = "invisible", "none"


SYSTEMS: dict[str, type[Writer]] = {
    system.name: system
    for system in (StrongGlobal, StrongNone, WeakLocal, InvisibleNone, Disk, Moose)
}


def make_tree(tree: Path, plan: Plan) -> None:
    """As a source tree is: small files, few large ones, some links, some attributes."""
    chance = random.Random(plan.files)
    tree.mkdir(parents=True)
    dirs = [tree]
    for n in range(plan.dirs):
        above = chance.choice(dirs[-40:])
        below = above / f"dir{n}"
        below.mkdir()
        dirs.append(below)
    text = chance.randbytes(MIB)
    for n in range(plan.files):
        # The median is 4 KiB, as in the kernel's sources.
        size = min(int(chance.lognormvariate(8.3, 1.4)), MIB)
        file = chance.choice(dirs) / f"file{n}.c"
        at = chance.randrange(MIB - size + 1)
        file.write_bytes(text[at : at + size])
        if n % 10 == 0:
            file.chmod(0o755)
        if n % 100 == 1:
            os.link(file, file.with_suffix(".hard"))
        if n % 100 == 2:
            os.symlink(file.name, file.with_suffix(".sym"))
        if n % 200 == 3:
            os.setxattr(file, "user.origin", b"source")


def checkpoint(place: Path, plan: Plan) -> None:
    """Shards under temporary names, each flushed and renamed; then what they are, and one more rename."""
    data = random.Random(1).randbytes(plan.shard_bytes)
    step = place / "step-1000.tmp"
    step.mkdir()
    for n in range(plan.shards):
        unfinished = step / f"__{n}_0.distcp.tmp"
        with unfinished.open("wb") as file:
            file.write(n.to_bytes(8) + data[8:])
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(step / f"__{n}_0.distcp")
    with (step / ".metadata.tmp").open("wb") as file:
        file.write(data[:KIB])
        file.flush()
        os.fsync(file.fileno())
    (step / ".metadata.tmp").rename(step / ".metadata")
    step.rename(place / "step-1000")


class Writing:
    """One system, one round."""

    def __init__(self, system: Writer, tree: Path, archive: Path, plan: Plan) -> None:
        self.system = system
        self.tree = tree
        self.archive = archive
        self.plan = plan
        self.records: list[dict] = []

    def measure(self, program: str, phase: str, run: list[str] | None) -> None:
        """Runs a command, or publishes, and notes how long that took."""
        before, began = cpu_seconds(self.system.pids()), time.monotonic()
        own = os.times()
        if run is None:
            self.system.publish()
        else:
            subprocess.run(run, check=True, timeout=SECONDS_MAX, stdin=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        spent = os.times()
        cpu = cpu_seconds(self.system.pids()) - before
        cpu += spent.children_user + spent.children_system
        cpu -= own.children_user + own.children_system
        self.records.append(
            {
                "system": self.system.name,
                "program": program,
                "phase": phase,
                "seconds": seconds,
                "cpu_s": cpu,
            }
        )

    def all(self) -> None:
        """Both programs, then the comparison of the trees."""
        system, place = self.system, self.system.place
        system.prepare()
        # With tar's own order of directories, times and attributes.
        tar = ["tar", "--extract", "--xattrs", "--file", str(self.archive), "--directory", str(place)]
        self.measure("tar", "write", tar)
        self.measure("tar", "publish", None)
        mine = ["python3", __file__, str(place), str(self.plan.shards), str(self.plan.shard_bytes)]
        self.measure("checkpoint", "write", mine)
        self.measure("checkpoint", "publish", None)
        # By what the servers have: the client remembers nothing.
        if not isinstance(system, Ext4):
            system.remount()
        host.command(["diff", "-r", "--no-dereference", self.tree, place / "tree"], seconds=SECONDS_MAX)
        rsync = ["rsync", "-anicHAX", "--delete", f"{self.tree}/", f"{place / 'tree'}/"]
        if differs := host.command(rsync, seconds=SECONDS_MAX).strip():
            raise Failed(f"{system.name}: the trees differ: {differs.splitlines()[:5]}")
        shards = sorted(path.name for path in (place / "step-1000").iterdir())
        sizes = {path.stat().st_size for path in (place / "step-1000").glob("__*")}
        if len(shards) != self.plan.shards + 1 or sizes != {self.plan.shard_bytes}:
            raise Failed(f"{system.name}: the checkpoint has {len(shards)} files of {sizes} bytes")


def prepare(work: Path, plan: Plan) -> tuple[Path, Path]:
    """The tree and its archive, on the local disk."""
    tree, archive = work / "source" / "tree", work / "source" / "tree.tar"
    make_tree(tree, plan)
    words = ["tar", "--create", "--xattrs", "--file", archive, "--directory", tree.parent, "tree"]
    host.command(words, seconds=SECONDS_MAX)
    say(f"a tree of {plan.files} files, {archive.stat().st_size / MIB:.0f} MiB")
    return tree, archive


if __name__ == "__main__":
    import sys

    _, at, shards_, bytes_ = sys.argv
    checkpoint(Path(at), Plan(shards=int(shards_), shard_bytes=int(bytes_)))

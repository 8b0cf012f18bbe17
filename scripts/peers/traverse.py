"""Random traversal of a tree while the memory of the client is limited (FalconFS section 6.4)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import host
from cephfs import CephFs
from host import Failed, Group
from saker import Saker, SakerFour
from system import System

MIB = 1 << 20


class SakerBpf(SakerFour):
    name = "saker-bpf"
    about = "4 MNodes, 2 stores; the mount's hints come from BPF"
    options = "shortcut=bpf"


class SakerOff(SakerFour):
    name = "saker-off"
    about = "4 MNodes, 2 stores; each component is looked up (FalconFS-NoBypass)"
    options = "shortcut=off"


SYSTEMS: dict[str, type[System]] = {
    system.name: system for system in (SakerBpf, SakerOff, CephFs)
}


@dataclass(frozen=True)
class Plan:
    """The tree and the budgets."""

    files: int
    levels: int
    """Of directories."""
    fanout: int
    size: int
    threads: int
    budgets: tuple[int, ...]
    """Percent of what the kernel needs for all inodes and dentries of the tree."""
    seconds: float | None
    """The longest that one system reads at one budget; `None`: the whole tree."""
    base_mib: int = 64
    """What is added to the budget, for the programs themselves."""
    ceph_base_mib: int = 256
    """The same for CephFS, whose client is killed in 64 MiB."""

    @property
    def entries(self) -> int:
        """Files and directories."""
        return self.files + sum(self.fanout**level for level in range(1, self.levels + 1))

    def words(self) -> list[str]:
        """The tree, for `saker bench traverse`."""
        tree = ["--files", self.files, "--depth", self.levels, "--fanout", self.fanout]
        return [str(word) for word in [*tree, "--size", self.size, "--threads", self.threads]]


def kernel_bytes(entries: int) -> int:
    """Of the inodes and dentries of a FUSE file system."""
    sizes = {}
    for line in Path("/proc/slabinfo").read_text().splitlines()[2:]:
        name, _, _, size, *_ = line.split()
        sizes[name] = int(size)
    if "fuse_inode" not in sizes:
        raise Failed("the kernel does not tell the size of a FUSE inode")
    return entries * (sizes["fuse_inode"] + sizes["dentry"])


class Traversal:
    """One system at all budgets."""

    def __init__(self, program: Path, system: System, plan: Plan) -> None:
        self.program = program
        self.system = system
        self.plan = plan

    def bench(self, *words: str, group: Group | None = None) -> dict:
        """Runs the program; its phase."""
        command = [self.program, "bench", "traverse", "--path", self.system.point, "--json"]
        command += [*self.plan.words(), *words]
        if pids := self.system.pids():
            command += ["--pids", ",".join(pids)]
        said = json.loads(host.command(command, group=group, seconds=7200))
        return said["phases"][0] if said["phases"] else {}

    def at(self, budget: int) -> dict:
        """Mounts anew with a limit, and reads the whole tree."""
        system, plan = self.system, self.plan
        system.unmount()
        system.client.end()
        system.drop_caches()
        ceph = isinstance(system, CephFs)
        base = plan.ceph_base_mib if ceph else plan.base_mib
        limit = base * MIB + kernel_bytes(plan.entries) * budget // 100
        if ceph:
            system.cached_inodes = plan.entries * budget // 100
        system.client = Group(system.client.path.name)
        system.client.limit_memory(limit)
        system.mount()
        system.wait_usable()
        before = system.metadata_requests()
        until = [] if plan.seconds is None else ["--seconds", str(plan.seconds)]
        phase = self.bench("--read", *until, group=system.client)
        record = {**phase, "system": system.name, "budget": budget, "limit": limit}
        record["peak"] = system.client.memory_peak()
        record["cpu_us"] = sum(phase["cpu_us_per_op"].values())
        record["metadata_requests_per_op"] = self.requests(phase, before)
        record["mode"] = shortcut_mode(system)
        return record

    def requests(self, phase: dict, before: float | None) -> float | None:
        """Of metadata, for each open."""
        after = self.system.metadata_requests()
        if before is not None and after is not None:
            return (after - before) / phase["ops"]
        per_op = phase.get("requests_per_op")
        return sum(per_op.values()) if per_op else None


def shortcut_mode(system: System) -> str | None:
    """What the log of a Saker mount says of its shortcut."""
    if not isinstance(system, Saker):
        return None
    lines = system.mount_log.read_text(errors="replace").splitlines()
    said = [line.split("shortcut: ", 1)[1] for line in lines if "shortcut: " in line]
    return said[-1] if said else None

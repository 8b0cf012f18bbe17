"""The programs that run on every system in turn: all of them `saker bench --path`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import host
from host import Failed
from system import System

Record = dict[str, object]
"""One phase: system, round, program, phase, and what `saker bench --json` says of it."""

KIB = 1024
INLINE_MAX = 4 * KIB
"""Saker keeps files up to this size in their inode rows: no store serves them, bytes."""
TREE_SHAPE = ("--depth", "4", "--fanout", "5")
THREADS = 16
SMALL_FILES = 5000
"""That every system writes, and then reads: else who writes slowly had fewer to read."""
SECOND_PASS_S = 0.3
"""Of each phase of the program whose files were all looked at less than a second before."""


class Program(NamedTuple):
    """One of those that measure a system."""

    title: str
    words: tuple[str, ...] = ()
    """Of `saker bench`."""
    flushes: bool = False
    """With the system's options for equal durability."""
    names: bool = False
    """Names and attributes that a client keeps count most."""
    tree_size: int = 0
    """Reads a tree of files of so many bytes, instead."""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    seconds: float = 2
    """Of each phase."""
    threads: tuple[int, ...] = (16, 128, 1)
    """Of the metadata programs."""
    sizes: tuple[int, ...] = (4096, 65536, 114688)
    """Bytes of small files."""
    tree_files: int = 10000
    """Of each tree that is read cold and warm."""
    burst_dirs: int = 64
    only: str = ""
    """Part of the names of the programs to run."""

    def programs(self) -> list[Program]:
        """Those that were chosen, in their order."""
        return [program for program in self._all() if self.only in program.title]

    def programs_of(self, system: System | type[System]) -> list[Program]:
        """Those that measure it: of a variant of another system, where it differs from that."""
        return [
            program
            for program in self.programs()
            if (program.flushes or not system.only_flushed)
            and (program.names or not system.only_names)
        ]

    def _all(self) -> Iterator[Program]:
        seconds = ("--seconds", str(self.seconds))
        for threads in self.threads:
            words = ("meta", "--threads", str(threads), *seconds)
            yield Program(f"metadata, {threads} threads", words, flushes=True, names=True)
        words = ("meta", "--again", "--threads", str(THREADS), "--seconds", str(SECOND_PASS_S))
        yield Program("metadata, second pass", words, names=True)
        for size in self.sizes:
            kib = f"{size // KIB} KiB"
            words = ("small", "--size", str(size), "--set", str(SMALL_FILES), *seconds)
            yield Program(f"files of {kib}", words, names=size <= INLINE_MAX)
            yield Program(f"tree of {kib} files", tree_size=size)
        yield Program("one directory", ("shared", *seconds), flushes=True)
        words = ("burst", "--threads", "64", "--dirs", str(self.burst_dirs), *seconds)
        yield Program("bursts of 4 KiB files", words)


QUICK = Plan(seconds=0.5, threads=(16, 128), tree_files=4000, burst_dirs=8)


class Bench:
    """Runs programs on one system, and collects what they say."""

    def __init__(self, saker: Path, system: System, round_: int, plan: Plan) -> None:
        self.saker = saker
        self.plan = plan
        self.system = system
        self.round = round_
        self.records: list[Record] = []
        self.problems: list[str] = []

    def all(self) -> None:
        """Every program of the plan that measures it; the next ones run also if one fails."""
        for program in self.plan.programs_of(self.system):
            host.say(f"  {self.system.name}: {program.title}")
            try:
                self.run(program)
            except (Failed, OSError) as why:
                self.problem(f"{program.title}: {why}")

    def run(self, program: Program) -> None:
        """One program."""
        if program.tree_size:
            self.tree(program.title, program.tree_size, self.plan.tree_files)
        else:
            durable = self.system.bench_options if program.flushes else ()
            self.bench(program.title, *program.words, *durable)

    def tree(self, title: str, size: int, files: int) -> None:
        """Written, read in random order with nothing cached, and read again."""
        words = ("traverse", *TREE_SHAPE, "--size", str(size), "--files", str(files))
        self.bench(title, *words, "--prepare")
        self.system.remount()
        before = self.counted()
        (cold,) = self.bench(title, *words, "--read", phase="read, cold")
        self.check_served(cold, size, before)
        self.bench(title, *words, "--read", phase="read, again")
        # Out of the way of the next one; it goes with the system.
        (self.system.point / "saker-bench-tree").rename(self.system.point / f"tree-{size}")

    def counted(self) -> tuple[int | None, int | None]:
        """Bytes read so far: file data by the servers, anything from the disk."""
        return self.system.served_bytes(), host.disk_read_bytes(self.system.work)

    def check_served(
        self, phase: Record, size: int, before: tuple[int | None, int | None]
    ) -> None:
        """What was read cold must have come from the servers where they count, and from the disk
        where they keep no data in memory of their own."""
        servers, disk = (
            None if now is None or then is None else now - then
            for now, then in zip(self.counted(), before, strict=True)
        )
        is_saker = phase.get("store_read_bytes") is not None
        if is_saker and size > INLINE_MAX:
            servers = phase["store_read_bytes"]
        phase["served_bytes"], phase["disk_bytes"] = servers, disk
        # CephFS counts by itself, and has some in memory; Saker's rows are in memory at first.
        caches = not is_saker and servers is not None
        in_rows = is_saker and size <= INLINE_MAX
        for who, read in (
            ("the servers", servers),
            ("the disk", None if caches or in_rows else disk),
        ):
            if read is not None and read < phase["ops"] * size:
                self.problem(f"{phase['program']}: {who} read only {read} bytes")

    def bench(self, title: str, *words: str, phase: str | None = None) -> list[Record]:
        """Runs `saker bench`; its phases as records."""
        command = [self.saker, "bench", *words, "--path", self.system.point, "--json"]
        if "--threads" not in words:
            command += ["--threads", str(THREADS)]
        if pids := self.system.pids():
            command += ["--pids", ",".join(pids)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
        try:
            said = json.loads(done.stdout)
        except json.JSONDecodeError as why:
            raise Failed(done.stderr.strip() or f"exit code {done.returncode}") from why
        if done.returncode:
            self.problem(f"{title}: {' '.join(done.stderr.split())}")
        same = {"system": self.system.name, "round": self.round, "program": title}
        records = [{**same, **figures} for figures in said["phases"]]
        for record in records:
            record["phase"] = phase or record["phase"]
            record["cpu_us"] = sum(record["cpu_us_per_op"].values())
        self.records += records
        ratios = said.get("ratios", {})
        self.records += [{**same, "phase": name, "ratio": ratio} for name, ratio in ratios.items()]
        return records

    def problem(self, text: str) -> None:
        """Something to say beside the figures."""
        host.say(f"  {self.system.name}: {text}")
        self.problems.append(f"{self.system.name}, round {self.round}: {text}")

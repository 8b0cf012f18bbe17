"""What the machine gives: processes in control groups, networks of their own, mounts, caches."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


class Failed(Exception):
    """Something that one system needs did not work; the others go on."""


def say(text: str) -> None:
    """Progress, beside the results."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def wait_until(what: str, seconds: float, holds: Callable[[], bool]) -> None:
    """Looks ten times a second, and fails when it takes too long."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.1)


class Group:
    """A control group: knows all processes that were started in it, and may limit their memory."""

    def __init__(self, name: str) -> None:
        root, self.version = hierarchy()
        self.path = root / name
        self.path.mkdir(exist_ok=True)

    def pids(self) -> list[int]:
        """All processes in it now."""
        try:
            return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]
        except FileNotFoundError:
            return []

    def limit_memory(self, size: int) -> None:
        """Pages, page cache and kernel objects, in bytes, from now on."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        (self.path / name).write_text(str(size))

    def memory_peak(self) -> int:
        """The most it has held, in bytes."""
        name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        return int((self.path / name).read_text())

    def end(self) -> None:
        """Kills what is left in it."""
        deadline = time.monotonic() + 20
        while pids := self.pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
            if time.monotonic() > deadline:
                raise Failed(f"{self.path.name}: processes {pids} do not end")
        # The kernel takes a moment to forget processes that were reaped just now.
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)


def hierarchy() -> tuple[Path, int]:
    """Where control groups of memory are, and of which version they are."""
    found = None
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(point), 1
        if kind == "cgroup2":
            found = Path(point)
    if found is None:
        raise Failed("no control groups are mounted")
    return found, 2


class Network:
    """A network namespace with one address that is not 127.x."""

    address = "10.98.0.1"

    def __init__(self, name: str) -> None:
        self.name = name
        command(["ip", "netns", "add", name])
        self.enter = ["nsenter", f"--net=/run/netns/{name}"]
        command([*self.enter, "ip", "link", "set", "lo", "up"])
        command([*self.enter, "ip", "address", "add", f"{self.address}/32", "dev", "lo"])

    def end(self) -> None:
        """Removes it."""
        subprocess.run(["ip", "netns", "delete", self.name], check=False)


def command(
    words: Sequence[str | Path],
    *,
    group: Group | None = None,
    network: Network | None = None,
    seconds: float = 120,
    env: dict[str, str] | None = None,
    code: int | None = 0,
    log: Path | None = None,
) -> str:
    """Runs a program to its end; its output. Fails with its errors if it fails.

    `code` is the exit code that is expected, None any. With `log`, output goes to that file: also
    that of daemons which outlive the program.
    """
    words = started_in([str(word) for word in words], group, network)
    out = log.open("ab") if log else subprocess.PIPE
    err = subprocess.STDOUT if log else subprocess.PIPE
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            timeout=seconds,
            check=False,
            env={**os.environ, **(env or {})},
        )
    except FileNotFoundError as why:
        raise Failed(str(why)) from why
    except subprocess.TimeoutExpired as why:
        raise Failed(f"{' '.join(words)}: not within {seconds:.0f} s") from why
    finally:
        if log:
            out.close()
    if code is not None and done.returncode != code:
        said = (
            log.read_text(errors="replace")
            if log
            else (done.stderr or done.stdout).decode(errors="replace")
        )
        lines = said.strip().splitlines()[-5:]
        raise Failed(f"{' '.join(words)}: exit code {done.returncode}: {' | '.join(lines)}")
    return "" if log else done.stdout.decode(errors="replace")


def daemon(
    words: Sequence[str | Path],
    log: Path,
    group: Group | None,
    network: Network | None,
) -> subprocess.Popen[bytes]:
    """Starts a program that goes on in the foreground of its own."""
    words = started_in([str(word) for word in words], group, network)
    with log.open("ab") as out:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def started_in(words: list[str], group: Group | None, network: Network | None) -> list[str]:
    """The same command, started in a control group and in a network."""
    if network:
        words = [*network.enter, *words]
    if group:
        enter = 'echo $$ >"$0" && exec "$@"'
        words = ["sh", "-c", enter, str(group.path / "cgroup.procs"), *words]
    return words


def install(packages: Sequence[str]) -> None:
    """Debian's packages; those that are there are left as they are."""
    script = Path(__file__).resolve().parent.parent / "packages.sh"
    command([script, *packages], seconds=1800)


def package_version(package: str) -> str:
    """Of an installed package."""
    return command(["dpkg-query", "--show", "--showformat=${Version}", package]).strip()


def is_mounted(point: Path) -> bool:
    """Is a file system mounted right there?"""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return any(line.split()[1] == str(point) for line in lines)


def unmount(point: Path) -> None:
    """Takes it out of the tree, also when it is in use or dead."""
    if not is_mounted(point):
        return
    done = subprocess.run(["umount", str(point)], capture_output=True, check=False)
    if done.returncode:
        subprocess.run(["umount", "--lazy", str(point)], check=False)
    wait_until(f"unmounting {point}", 20, lambda: not is_mounted(point))


def drop_caches() -> None:
    """Names, inodes and pages that the kernel holds."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def disk_read_bytes(path: Path) -> int | None:
    """What the disk that holds `path` has read so far; `None` where that is not one device."""
    device = path.stat().st_dev
    with suppress(FileNotFoundError):
        stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text()
        # Sectors are of 512 bytes, whatever the disk's (Documentation/block/stat.rst).
        return int(stat.split()[2]) * 512
    return None


@dataclass
class Machine:
    """What figures depend on."""

    kernel: str
    cores: int
    memory_gib: float
    disk: str
    load_before: float

    @staticmethod
    def look(work: Path) -> Machine:
        """Now; `work` is where the systems keep their data."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        disk = command(["df", "--output=fstype", work]).split()[-1]
        load = os.getloadavg()[0]
        return Machine(os.uname().release, os.cpu_count() or 1, round(memory, 1), disk, load)


def remove_tree(path: Path) -> None:
    """All of a directory; what is mounted below stays."""
    command(["rm", "-rf", "--one-file-system", path], seconds=3600)


def cpu_us(pid: int) -> float:
    """CPU time of a process, by its clock (clock_getcpuclockid(3), which Python does not have)."""
    cpuclock_sched = 2
    return time.clock_gettime((~pid << 3) | cpuclock_sched) * 1e6


def find_program(name: str) -> str:
    """Where a program is."""
    path = shutil.which(name)
    if path is None:
        raise Failed(f"there is no {name}")
    return path

"""What all systems under test have in common."""

from __future__ import annotations

import time
from pathlib import Path

import host
from host import Failed, Group, Network


class System:
    """A file system that can be installed, started, mounted, and stopped without a trace.

    Subclasses say how; what they start through `group` and `client` is counted and ended here.
    """

    name = ""
    """As on the command line."""
    about = ""
    """One line for the report: configuration and durability."""
    packages: tuple[str, ...] = ()
    """Debian's."""
    own_network = True
    """Does it run in a network namespace?"""
    only_flushed = False
    """Does it differ from another only in programs that may flush changes of names?"""
    only_names = False
    """Does it differ from another most where names and attributes that a client keeps count?"""
    bench_options: tuple[str, ...] = ()
    """More options of `saker bench meta` and `shared`, for equal durability."""

    def __init__(self, work: Path) -> None:
        self.work = work / self.name
        self.point = self.work / "mnt"
        self.group: Group | None = None
        self.client: Group | None = None
        self.network: Network | None = None

    # What subclasses say.

    def start(self) -> None:
        """Starts servers on an empty directory, `work`."""

    def mount(self) -> None:
        """Mounts it at `point`; returns when it can be used."""
        raise NotImplementedError

    def halt(self) -> None:
        """Stops servers politely, if that takes more than to kill them."""

    def version(self) -> str:
        """Of what runs."""
        return host.package_version(self.packages[0])

    def label(self, words: list[str]) -> str:
        """What a process is, by its command line."""
        # Some replace their command line by words of their own.
        return Path(words[0].split()[0]).name if words[0] else "process"

    def served_bytes(self) -> int | None:
        """File data that servers have read so far, where they count."""
        return None

    def metadata_requests(self) -> float | None:
        """Requests that metadata servers have served so far, where they count."""
        return None

    # What is the same for all.

    def install(self) -> None:
        """What is missing."""
        host.install(self.packages)

    def up(self) -> None:
        """Installs, starts and mounts."""
        self.install()
        self.point.mkdir(parents=True)
        self.group = Group(f"saker-peers-{self.name}")
        self.client = Group(f"saker-peers-{self.name}-client")
        if self.own_network:
            self.network = Network(f"saker-peers-{self.name}")
        self.start()
        self.mount()
        self.wait_usable()

    def wait_usable(self) -> None:
        """Until a file can be made, written and removed."""

        def usable() -> bool:
            probe = self.point / "probe"
            try:
                probe.write_bytes(b"probe" * 1000)
                whole = len(probe.read_bytes()) == 5000
                probe.unlink()
                return whole
            except OSError:
                return False

        host.wait_until(f"{self.name}: a first file", 60, usable)

    def unmount(self) -> None:
        """Returns when the client has ended by itself, and has told its servers so."""
        host.unmount(self.point)
        host.wait_until(f"{self.name}: its client ends", 30, lambda: not self.client.pids())

    def drop_caches(self) -> None:
        """What the kernel holds for anybody; servers keep what they have in their own memory."""
        host.drop_caches()

    def remount(self) -> None:
        """So that neither kernel nor client remember anything."""
        self.unmount()
        self.drop_caches()
        self.mount()
        self.wait_usable()

    def pids(self) -> list[str]:
        """NAME:PID of every process but the program that measures."""
        counted: dict[str, int] = {}
        pids = []
        for group in (self.group, self.client):
            for pid in group.pids() if group else []:
                try:
                    line = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue
                label = self.label(line.rstrip(b"\0").decode(errors="replace").split("\0"))
                n = counted.get(label, 0)
                counted[label] = n + 1
                pids.append(f"{label}-{n}:{pid}")
        return pids

    def down(self) -> None:
        """Stops everything and removes all data; also after half a start."""
        steps = [lambda: host.unmount(self.point), self.halt]
        steps += [group.end for group in (self.client, self.group) if group]
        steps += [self.network.end] if self.network else []
        steps += [lambda: self.work.exists() and host.remove_tree(self.work)]
        for step in steps:
            try:
                step()
            except (Failed, OSError) as why:
                host.say(f"{self.name}: stopping: {why}")
        self.group = self.client = self.network = None

    def run(self, *words: str | Path, seconds: float = 120, log: bool = False) -> str:
        """Runs a server's program, or one that starts a daemon, among the servers."""
        file = self.work / "start.log" if log else None
        return host.command(
            words, group=self.group, network=self.network, seconds=seconds, log=file
        )

    def run_client(self, *words: str | Path, seconds: float = 120) -> None:
        """The same among the clients, for what mounts."""
        file = self.work / "mount.log"
        host.command(words, group=self.client, network=self.network, seconds=seconds, log=file)
        host.wait_until(f"{self.name}: mount", 30, lambda: host.is_mounted(self.point))

    def spawn(self, *words: str | Path) -> None:
        """Starts a server that stays in the foreground."""
        log = self.work / f"{Path(words[0]).name}.log"
        child = host.daemon(words, log, self.group, self.network)
        time.sleep(0.2)
        if child.poll() not in (None, 0):
            lines = log.read_text(errors="replace").strip().splitlines()[-5:]
            raise Failed(f"{words[0]}: exit code {child.returncode}: {' | '.join(lines)}")

    @property
    def address(self) -> str:
        """Where servers listen."""
        return Network.address

"""Saker: `saker up` on this machine, and one mount."""

import os
from pathlib import Path

import host
from system import System


URING = Path("/sys/module/fuse/parameters/enable_uring")
"""The kernel's switch for FUSE over io_uring, off by default."""


class Saker(System):
    name = "saker"
    about = (
        "1 coordinator, 1 MNode, 1 store, one mount, by io_uring where the kernel has that; "
        "every reply leaves after a flush"
    )
    packages = ("fuse3",)
    own_network = False
    program: Path
    """The release build, set by the driver."""
    options = ""
    """Of the mount."""
    mnodes = stores = 1
    uring_was: str | None = None

    def start(self) -> None:
        if URING.exists():
            self.uring_was = URING.read_text()
            URING.write_text("Y")
        shape = ("--mnodes", str(self.mnodes), "--stores", str(self.stores))
        self.run(self.program, "up", "--dir", self.cluster, *shape, log=True)

    @property
    def cluster(self) -> Path:
        """The cluster's directory."""
        return self.work / "cluster"

    @property
    def mount_log(self) -> Path:
        """What the mount says, the mode of its shortcut among it."""
        return self.work / "saker-mount.log"

    def mount(self) -> None:
        self.mount_with(self.options)

    def mount_with(self, options: str) -> None:
        """Mounts it with these options, and those of the environment."""
        given = os.environ.get("SAKER_MOUNT_OPTIONS", "")
        options = ",".join(option for option in (options, given) if option)
        words = [self.program, "mount", self.cluster, self.point, "--log", self.mount_log]
        self.run_client(*words, *(["-o", options] if options else []))

    def halt(self) -> None:
        if self.uring_was is not None:
            URING.write_text(self.uring_was)
        if self.cluster.exists():
            host.command([self.program, "down", "--dir", self.cluster, "--wipe"])

    def version(self) -> str:
        return host.command([self.program, "--version"]).strip()

    def label(self, words: list[str]) -> str:
        role = [word for word in words[1:3] if word != "serve"]
        return role[0] if role else "saker"


class SakerCached(Saker):
    name = "saker-cached"
    about = "saker; the mount keeps names and attributes for 1 s (entry_timeout, attr_timeout)"
    options = "entry_timeout=1,attr_timeout=1"


class SakerFour(Saker):
    name = "saker-4"
    about = "saker with 4 MNodes and 2 stores"
    mnodes, stores = 4, 2

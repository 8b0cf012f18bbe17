"""Saker: `saker up` with four MNodes on this machine, and one mount."""

import os
from pathlib import Path

import host
from system import System


class Saker(System):
    name = "saker"
    about = "1 coordinator, 4 MNodes, 2 stores, one mount; every reply leaves after a flush"
    packages = ("fuse3",)
    own_network = False
    program: Path
    """The release build, set by the driver."""
    options = ""
    """Of the mount."""

    def start(self) -> None:
        self.run(self.program, "up", "--dir", self.cluster, "--mnodes", "4", log=True)

    @property
    def cluster(self) -> Path:
        """The cluster's directory."""
        return self.work / "cluster"

    @property
    def mount_log(self) -> Path:
        """What the mount says, the mode of its shortcut among it."""
        return self.work / "saker-mount.log"

    def mount(self) -> None:
        given = os.environ.get("SAKER_MOUNT_OPTIONS", "")
        options = ",".join(option for option in (self.options, given) if option)
        words = [self.program, "mount", self.cluster, self.point, "--log", self.mount_log]
        self.run_client(*words, *(["-o", options] if options else []))

    def halt(self) -> None:
        if self.cluster.exists():
            host.command([self.program, "down", "--dir", self.cluster, "--wipe"])

    def version(self) -> str:
        return host.command([self.program, "--version"]).strip()

    def label(self, words: list[str]) -> str:
        role = [word for word in words[1:3] if word != "serve"]
        return role[0] if role else "saker"


class SakerCached(Saker):
    name = "saker-cached"
    about = "the same; the mount keeps names and attributes for 1 s (entry_timeout, attr_timeout)"
    options = "entry_timeout=1,attr_timeout=1"

"""MooseFS: master, one chunk server, mfsmount. It refuses 127.x."""

import shutil
from pathlib import Path

import host
from system import System

EMPTY = Path("/var/lib/mfs/metadata.mfs.empty")


class MooseFs(System):
    name = "moosefs"
    about = "1 master, 1 chunk server, goal 1; changelog written in the background (as shipped)"
    packages = ("moosefs-master", "moosefs-chunkserver", "moosefs-client", "moosefs-cli")
    changelog_mode = 0
    mount_options = ""

    def start(self) -> None:
        master, chunks = self.work / "master", self.work / "chunks"
        for path in (master, chunks, chunks / "disk"):
            path.mkdir()
        shutil.copy(EMPTY, master / "metadata.mfs")
        (master / "exports").write_text("* / rw,alldirs,admin,maproot=0:0\n")
        (master / "topology").write_text("")
        self.settings(
            master / "cfg",
            DATA_PATH=master,
            EXPORTS_FILENAME=master / "exports",
            TOPOLOGY_FILENAME=master / "topology",
            CHANGELOG_SAVE_MODE=self.changelog_mode,
        )
        (chunks / "hdd").write_text(f"{chunks / 'disk'}\n")
        self.settings(
            chunks / "cfg",
            DATA_PATH=chunks,
            HDD_CONF_FILENAME=chunks / "hdd",
            MASTER_HOST=self.address,
            HDD_LEAVE_SPACE_DEFAULT="64MiB",
        )
        self.run("mfsmaster", "-c", master / "cfg", "start", log=True)
        self.run("mfschunkserver", "-c", chunks / "cfg", "start", log=True)

    @staticmethod
    def settings(file: Path, **values: object) -> None:
        """Writes a configuration file."""
        values = {"WORKING_USER": "root", "WORKING_GROUP": "root", **values}
        file.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))

    def mount(self) -> None:
        options = [option for option in (self.mount_options,) if option]
        words = ["mfsmount", self.point, "-H", self.address]
        for option in options:
            words += ["-o", option]
        host.wait_until(f"{self.name}: mount", 60, lambda: self.try_mount(words))
        # There is one server for copies.
        self.run("mfssetgoal", "1", self.point)

    def try_mount(self, words: list[str | Path]) -> bool:
        """The master may not answer yet."""
        log = self.work / "mount.log"
        host.command(words, group=self.client, network=self.network, code=None, log=log)
        return host.is_mounted(self.point)

    def halt(self) -> None:
        for program, name in (("mfschunkserver", "chunks"), ("mfsmaster", "master")):
            if (self.work / name / "cfg").exists():
                host.command([program, "-c", self.work / name / "cfg", "stop"], code=None)


class MooseFsSync(MooseFs):
    name = "moosefs-sync"
    about = "the same; changelog flushed after each write (CHANGELOG_SAVE_MODE = 2)"
    changelog_mode = 2
    only_flushed = True


class MooseFsUncached(MooseFs):
    name = "moosefs-uncached"
    about = "as shipped; the mount keeps no names and attributes"
    only_names = True
    mount_options = "mfsattrcacheto=0,mfsentrycacheto=0,mfsdirentrycacheto=0,mfsnegentrycacheto=0"

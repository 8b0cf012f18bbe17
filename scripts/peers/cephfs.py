"""CephFS: one monitor, manager, OSD (BlueStore in a file) and MDS, through ceph-fuse."""

import json
import uuid
from pathlib import Path

import host
from system import System

SETTINGS = """[global]
fsid = {fsid}
mon_host = [v2:{address}:3300,v1:{address}:6789]
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
bluestore_block_size = 21474836480
admin_socket = {work}/$name.$pid.asok
run_dir = {work}
log_file = {work}/$name.log
pid_file = {work}/$name.pid
crash_dir = {work}
mon_data = {work}/mon
mgr_data = {work}/mgr
osd_data = {work}/osd
mds_data = {work}/mds
"""


class CephFs(System):
    name = "cephfs"
    about = "1 monitor, 1 manager, 1 OSD, 1 MDS, no replication; ceph-fuse; answers before a flush"
    packages = ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph-common")
    cached_inodes: int | None = None
    """How many its client keeps, where that is not its default."""

    def start(self) -> None:
        fsid = str(uuid.uuid4())
        for name in ("mon", "mgr", "osd", "mds"):
            (self.work / name).mkdir()
        self.conf.write_text(SETTINGS.format(fsid=fsid, address=self.address, work=self.work))
        self.start_mon(fsid)
        self.run("ceph-mgr", "-c", self.conf, "-i", "x", log=True)
        self.start_osd()
        self.ceph("osd", "pool", "create", "meta", "16")
        self.ceph("osd", "pool", "create", "data", "32")
        self.ceph("fs", "new", "peers", "meta", "data")
        self.run("ceph-mds", "-c", self.conf, "-i", "a", log=True)
        host.wait_until("the MDS", 60, lambda: "up:active" in self.ceph("mds", "stat"))

    def start_mon(self, fsid: str) -> None:
        """The monitor, which knows the others."""
        monmap, at = self.work / "monmap", f"[v2:{self.address}:3300,v1:{self.address}:6789]"
        self.run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", at, monmap)
        self.run("ceph-mon", "-c", self.conf, "--mkfs", "-i", "a", "--monmap", monmap)
        self.run("ceph-mon", "-c", self.conf, "-i", "a", log=True)

    def start_osd(self) -> None:
        """The store."""
        osd = str(uuid.uuid4())
        self.ceph("osd", "new", osd)
        words = ["ceph-osd", "-c", self.conf, "-i", "0"]
        self.run(*words, "--mkfs", "--osd-uuid", osd)
        self.run(*words, log=True)
        host.wait_until("the OSD", 60, lambda: "1 up" in self.ceph("osd", "stat"))

    @property
    def conf(self) -> Path:
        """Its configuration file."""
        return self.work / "ceph.conf"

    def ceph(self, *words: str) -> str:
        """A command of the administrator."""
        command = ["ceph", "-c", self.conf, "--connect-timeout", "30", *words]
        return host.command(command, network=self.network)

    def mount(self) -> None:
        cache = [f"--client_cache_size={self.cached_inodes}"] if self.cached_inodes else []
        self.run_client("ceph-fuse", "-c", self.conf, *cache, self.point)

    def perf(self, daemon: str) -> dict:
        """Counters of a daemon."""
        sockets = sorted(self.work.glob(f"{daemon}.*.asok"))
        return json.loads(host.command(["ceph", "daemon", sockets[-1], "perf", "dump"]))

    def served_bytes(self) -> int:
        return self.perf("osd.0")["osd"]["op_r_out_bytes"]

    def metadata_requests(self) -> float:
        return self.perf("mds.a")["mds"]["request"]


class CephFsSync(CephFs):
    name = "cephfs-sync"
    about = "the same; the program flushes the directory (fsync) after each change of a name"
    bench_options = ("--sync-dirs",)
    only_flushed = True

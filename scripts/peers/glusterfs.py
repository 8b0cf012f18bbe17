"""GlusterFS: one brick. It refuses 127.x."""

import host
from system import System


class GlusterFs(System):
    name = "glusterfs"
    about = "one brick, no replication; as shipped, not flushed"
    packages = ("glusterfs-server", "glusterfs-client")

    def start(self) -> None:
        state, brick = self.work / "state", self.work / "brick"
        for path in (state, brick, self.work / "run"):
            path.mkdir()
        volfile = self.work / "glusterd.vol"
        volfile.write_text(
            "volume management\n"
            "    type mgmt/glusterd\n"
            f"    option working-directory {state}\n"
            f"    option run-directory {self.work / 'run'}\n"
            f"    option glusterd-sockfile {self.socket}\n"
            "    option transport-type socket\n"
            f"    option transport.socket.bind-address {self.address}\n"
            "end-volume\n"
        )
        self.spawn("glusterd", "-N", "-f", volfile, "-l", self.work / "glusterd.log")
        host.wait_until("glusterd", 30, lambda: self.answers("pool", "list"))
        self.gluster("volume", "create", "peers", f"{self.address}:{brick}", "force")
        self.gluster("volume", "start", "peers")

    @property
    def socket(self) -> str:
        """Where glusterd takes commands."""
        return f"{self.work}/glusterd.sock"

    def answers(self, *words: str) -> bool:
        """Does glusterd carry out a command?"""
        command = ["gluster", "--mode=script", f"--glusterd-sock={self.socket}", *words]
        said = host.command(command, network=self.network, code=None)
        return "Connected" in said or "localhost" in said

    def gluster(self, *words: str) -> None:
        """A command of the administrator."""
        self.run("gluster", "--mode=script", f"--glusterd-sock={self.socket}", *words)

    def mount(self) -> None:
        server, log = f"--volfile-server={self.address}", f"--log-file={self.work}/client.log"
        self.run_client("glusterfs", server, "--volfile-id=peers", log, self.point)

"""A Saker cluster at the router: one coordinator, two MNodes, two stores."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from host import command, wait_until
from network import Machine

MNODES = STORES = 2
COORDINATOR, MNODE, STORE, HTTP = 7400, 7410, 7430, 7480
"""First ports."""


class Cluster:
    """Runs from `start` to `end`."""

    def __init__(self, saker: Path, hub: Machine, work: Path) -> None:
        self.saker, self.hub, self.work = saker, hub, work / "cluster"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.http: dict[str, int] = {}

    @property
    def address(self) -> str:
        """Of the coordinator."""
        return f"{self.hub.address}:{COORDINATOR}"

    def start(self) -> None:
        """Starts all roles."""
        at = self.hub.address
        shards = [f"{at}:{MNODE + n}" for n in range(MNODES)]
        stores = [f"{at}:{STORE + n}" for n in range(STORES)]
        tables = "".join(
            f"[[cluster.shards]]\naddr = {json.dumps(shard)}\nmnode = {n}\n"
            for n, shard in enumerate(shards)
        )
        cluster = (
            f"[cluster]\nname = \"nodes\"\ninline_max = 4096\n"
            f"replicas = 1\nstores = {json.dumps(stores)}\n{tables}"
        )
        self.role("coordinator", 0, f"listen = \"{self.address}\"\n{cluster}")
        for n, shard in enumerate(shards):
            self.role("mnode", n, f"coordinator = \"{self.address}\"\nlisten = [\"{shard}\"]\n")
        for n, store in enumerate(stores):
            self.role("store", n, f"coordinator = \"{self.address}\"\nlisten = \"{store}\"\n")
        wait_until("the cluster", 60, self.serves)

    def role(self, role: str, n: int, settings: str) -> None:
        """Starts a process."""
        name, port = f"{role}-{n}", HTTP + len(self.http)
        data = self.work / "data" / name
        data.mkdir(parents=True)
        head = f"n = {n}\ndata_dir = \"{data}\"\nhttp = \"{self.hub.address}:{port}\"\n"
        file = self.work / f"{name}.toml"
        file.write_text(head + settings)
        with (self.work / f"{name}.log").open("wb") as log:
            words = [*self.hub.enter, self.saker, "serve", role, "--config", file]
            self.processes.append(subprocess.Popen(words, stdout=log, stderr=log))
        self.http[name] = port

    def serves(self) -> bool:
        """Says whether files can be made."""
        words = [*self.hub.enter, self.saker, "fs", "ls", "/", "--cluster", self.address]
        try:
            done = subprocess.run(words, capture_output=True, check=False, timeout=5)
            return done.returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def run(self, *words: str | Path) -> str:
        """A command of `saker`."""
        return command([*self.hub.enter, self.saker, *words, "--cluster", self.address])

    def counted(self) -> dict[str, float]:
        """Requests that MNodes have served, and reads of stores."""
        of = {"mnode": "saker_mnode_requests_total", "store": "saker_store_reads_total"}
        return {
            metric: sum(self.metric(name, metric) for name in self.http if name.startswith(role))
            for role, metric in of.items()
        }

    def metric(self, name: str, metric: str) -> float:
        """Of a process, all labels together."""
        url = f"http://{self.hub.address}:{self.http[name]}/metrics"
        fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
        text = command([*self.hub.enter, "/usr/bin/python3", "-c", fetch, url])
        return sum(float(x) for x in re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", text, re.M))

    def end(self) -> None:
        """Ends all processes."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()

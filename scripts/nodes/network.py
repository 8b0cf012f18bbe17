"""Machines of a cluster as network namespaces, all on one bridge."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from ipaddress import IPv4Address

from host import Failed, command

NET = IPv4Address("10.97.0.0")
"""Addresses are of this network, /16."""
PORT = 7460
"""Of the agents."""


class Network:
    """A bridge in a namespace of its own, and machines at it."""

    def __init__(self) -> None:
        self.prefix = f"saker-nodes-{os.getpid()}"
        self.hub = Machine(f"{self.prefix}-hub", NET + 1)
        self.machines: list[Machine] = []

    def up(self, machines: int) -> None:
        """Makes them all."""
        self.hub.add()
        self.hub.sh("ip link add bridge type bridge && ip link set bridge up")
        self.hub.sh(f"ip address add {self.hub.address}/16 dev bridge")
        for n in range(machines):
            machine = Machine(f"{self.prefix}-{n}", NET + 256 + n)
            self.machines.append(machine)
            machine.add()
            self.hub.sh(
                f"ip link add v{n} type veth peer name eth0 netns {machine.name} && "
                f"ip link set v{n} master bridge up"
            )
            machine.sh(f"ip address add {machine.address}/16 dev eth0 && ip link set eth0 up")

    def down(self) -> None:
        """Removes them; processes in them have ended."""
        for machine in [*self.machines, self.hub]:
            with suppress(Failed):
                command(["ip", "netns", "delete", machine.name])

    def sent_bytes(self, machines: int) -> int:
        """What the first machines have sent, with all headers, before the kernel cuts it into
        packets of the interface's size."""
        links = json.loads(command([*self.hub.enter, "ip", "-s", "-j", "link"]))
        names = {f"v{n}" for n in range(machines)}
        return sum(link["stats64"]["rx"]["bytes"] for link in links if link["ifname"] in names)


class Machine:
    """A network namespace with an address."""

    def __init__(self, name: str, address: IPv4Address) -> None:
        self.name = name
        self.address = str(address)
        self.enter = ["nsenter", f"--net=/run/netns/{name}"]
        self.agent = f"{address}:{PORT}"

    def add(self) -> None:
        """Makes it."""
        command(["ip", "netns", "add", self.name])
        self.sh("ip link set lo up")

    def sh(self, script: str) -> None:
        """Runs a script of the shell in it."""
        command([*self.enter, "sh", "-c", script])

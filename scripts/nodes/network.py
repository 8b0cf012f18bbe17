"""Machines of a cluster as network namespaces, around a router."""

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
    """A router in a namespace of its own, and machines at it.

    With a bridge, each machine would have an entry for each other one in the kernel's table of
    neighbours, which all namespaces share: 64 machines overflow it (gc_thresh3 in arp(7)).
    """

    def __init__(self) -> None:
        self.prefix = f"saker-nodes-{os.getpid()}"
        self.hub = Machine(f"{self.prefix}-hub", NET + 1)
        self.machines: list[Machine] = []

    def up(self, machines: int) -> None:
        """Makes them all."""
        self.hub.add()
        self.hub.sh("echo 1 > /proc/sys/net/ipv4/ip_forward")
        self.hub.sh(f"ip address add {self.hub.address}/32 dev lo")
        for n in range(machines):
            machine = Machine(f"{self.prefix}-{n}", NET + 256 + n)
            self.machines.append(machine)
            machine.add()
            self.hub.sh(
                f"ip link add v{n} type veth peer name eth0 netns {machine.name} && "
                f"ip link set v{n} up && ip route add {machine.address} dev v{n}"
            )
            machine.sh(
                f"ip address add {machine.address}/32 dev eth0 && ip link set eth0 up && "
                f"ip route add {self.hub.address} dev eth0 && "
                f"ip route add default via {self.hub.address}"
            )

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

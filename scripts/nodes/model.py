"""What an epoch costs on many nodes: fitted to what was measured, and drawn beyond it.

A node that reads a file finds it on its own disk with probability h = replicas / nodes. CPU time of
a file is h * local + (1 - h) * remote, where `remote` has both ends of the request. The network is
no part of the fit: its bandwidth and latency are parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

NODES = (1, 4, 16, 64, 128, 256, 512)


@dataclass(frozen=True)
class Cost:
    """CPU microseconds of a file, fitted."""

    local: float
    remote: float
    error: float
    """The largest relative error of the fit."""

    def at(self, hit: float) -> float:
        """With this share of local files."""
        return hit * self.local + (1 - hit) * self.remote


def fit(points: list[tuple[float, float]]) -> Cost:
    """Least squares of the relative errors through (share of local files, CPU microseconds a file):
    local files cost so little that absolute errors would leave them out."""
    weights = [(1 / y**2, x, y) for x, y in points]
    total = sum(w for w, *_ in weights)
    mean_x = sum(w * x for w, x, _ in weights) / total
    mean_y = sum(w * y for w, _, y in weights) / total
    spread = sum(w * (x - mean_x) ** 2 for w, x, _ in weights)
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in weights) / spread
    remote = mean_y - slope * mean_x
    cost = Cost(remote + slope, remote, 0)
    error = max(abs(cost.at(x) / y - 1) for x, y in points)
    return Cost(cost.local, cost.remote, error)


@dataclass(frozen=True)
class Machine:
    """A node of the model. None of it was measured."""

    cores: int = 4
    """For reading and for the agent, beside the training."""
    readers: int = 4
    """Files that a node reads at once."""
    gbit: float = 100
    """Of its link, each way: Omni-Path of the paper's CPU cluster. Without contention."""
    round_trip_us: float = 20
    """From agent to agent."""
    disk_mb: float = 2000
    """Of its local disk."""

    def network_us(self, stored: float) -> float:
        """Bytes on the link."""
        return stored * 8 / (self.gbit * 1e3)

    def disk_us(self, stored: float) -> float:
        """Bytes from the disk, of this node or of the one that is asked."""
        return stored / self.disk_mb


def files_per_s(cost: Cost, machine: Machine, stored: float, hit: float) -> float:
    """Files that a node reads in a second: the slowest of CPU, link, disk, and of readers that wait
    for their files."""
    cpu, disk = cost.at(hit), machine.disk_us(stored)
    wire = (1 - hit) * machine.network_us(stored)
    waits = cpu + disk + wire + (1 - hit) * machine.round_trip_us
    return 1e6 / max(cpu / machine.cores, wire, disk, waits / machine.readers)


def trained_per_s(read: float, computed: float, overlapped: bool) -> float:
    """Files that a node trains on in a second; without reading it would train on `computed`."""
    return min(read, computed) if overlapped else 1 / (1 / read + 1 / computed)

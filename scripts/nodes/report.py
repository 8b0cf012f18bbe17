"""Tables and plots of what was measured, and of the model."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
import model  # noqa: E402 - the backend comes first
from matplotlib import pyplot  # noqa: E402

PAPER_BENCHMARK = ("5.8-45.4", "76.3-83.1%", "81.4-88.2%")
"""Of the paper's benchmark, all file sizes (§6.5.1): bandwidth of 64 nodes against one (Figure 6),
efficiency of 16 nodes against 4 (Figure 5) and of 512 against 64 (Figure 6)."""
TRAINED = (
    ("ResNet-50", 544, (("GPU cluster", 4, 16, 1.0), ("CPU cluster", 64, 512, 0.954))),
    ("SRGAN-Init", 102, (("GPU cluster", 1, 16, 1.0),)),
    ("SRGAN-Train", 49, (("GPU cluster", 1, 16, 1.0),)),
)
"""Files a second on one node (§6.4.2), and efficiencies (§6.5.2, Figures 7 and 8): from so many
nodes, to so many. "Almost 100%" is drawn as 1."""


def groups(runs: list[dict]) -> dict[tuple, list[dict]]:
    """Epochs of the same kind."""
    found: dict[tuple, list[dict]] = {}
    for run in runs:
        key = (run["kib"], run["codec"], run["nodes"], run["replicas"], run["origin"])
        found.setdefault(key, []).append(run)
    return found


def remote(run: dict) -> int:
    """Files that were not local."""
    return run["reads"] - local(run)


def local(run: dict) -> int:
    """Files that a process has read in its node's partition, or its agent has."""
    return run["reads"] - run["opens"] if run["codec"] == "none" else run["local_reads"]


def cpu_us(run: dict) -> float:
    """Of a file: reader and agents."""
    return (run["reader_cpu_us"] + run["agent_cpu_us"]) / run["reads"]


def counts(runs: list[dict]) -> list[str]:
    """Requests and bytes."""
    lines = [
        "| nodes | replicas | files | reads | local: measured (replicas / nodes) "
        "| requests a remote file | data a remote file: measured (stored) "
        "| sent a remote file, with headers | from the origin | failures |",
        "|---" * 10 + "|",
    ]
    for (kib, codec, nodes, replicas, _), of in groups(runs).items():
        reads, far = sum(run["reads"] for run in of), sum(map(remote, of))
        hit = 1 - far / reads
        stored = of[0]["stored_bytes"] / of[0]["files"]
        each = {k: sum(r[k] for r in of) / far if far else 0 for k in
                ("peer_reads", "peer_read_bytes", "sent_bytes")}
        over = each["sent_bytes"] / stored - 1
        sent = f"{each['sent_bytes']:.0f} (+{over:.2%})" if far else "-"
        data = f"{each['peer_read_bytes']:.0f} ({stored:.0f})" if far else "-"
        asked = f"{each['peer_reads']:.4f}" if far else "-"
        from_origin = sum(r["origin_reads"] for r in of)
        failed = sum(r["read_failures"] + r["open_failures"] for r in of)
        lines.append(
            f"| {nodes} | {replicas} | {kib} KiB, {codec} | {reads} | {hit:.6f} "
            f"({min(1, replicas / nodes):.6f}) | {asked} | {data} | {sent} | {from_origin} "
            f"| {failed} |"
        )
    return lines


def costs(runs: list[dict], fits: dict[int, model.Cost]) -> list[str]:
    """CPU time."""
    lines = ["| files | nodes | replicas | local | process | agents | together | fit |"]
    lines.append("|---" * 8 + "|")
    for (kib, codec, nodes, replicas, _), of in groups(runs).items():
        process = median(r["reader_cpu_us"] / r["reads"] for r in of)
        agents = median(r["agent_cpu_us"] / r["reads"] for r in of)
        hit = min(1, replicas / nodes)
        fitted = f"{fits[kib].at(hit):.0f}" if codec == "none" else "-"
        lines.append(
            f"| {kib} KiB, {codec} | {nodes} | {replicas} | {hit:.1%} | {process:.0f} "
            f"| {agents:.0f} | {median(map(cpu_us, of)):.0f} | {fitted} |"
        )
    return lines


def fits_of(runs: list[dict]) -> dict[int, model.Cost]:
    """For each size of files: of the median of each kind of epoch, so that all count the same."""
    fits = {}
    for kib in sorted({run["kib"] for run in runs}):
        points = [
            (min(1, key[3] / key[2]), median(map(cpu_us, of)))
            for key, of in groups(runs).items()
            if key[0] == kib and key[1] == "none"
        ]
        fits[kib] = model.fit(points)
    return fits


def crowded(runs: list[dict], fits: dict[int, model.Cost]) -> dict[int, model.Cost]:
    """The same with the cost of a remote file on as many nodes as were measured."""
    costs = {}
    most = max(run["nodes"] for run in runs)
    for kib, cost in fits.items():
        key = next(k for k in groups(runs) if k[:4] == (kib, "none", most, 1))
        far = median(map(cpu_us, groups(runs)[key])) - cost.local / most
        costs[kib] = model.Cost(cost.local, far / (1 - 1 / most), 0)
    return costs


def rates(cost: model.Cost, machine: model.Machine, kib: int) -> dict[int, float]:
    """Files a second of a node, by the number of nodes."""
    return {n: model.files_per_s(cost, machine, kib << 10, 1 / n) for n in model.NODES}


def predictions(runs: list[dict], fits: dict, machine: model.Machine) -> list[str]:
    """The model's figures."""
    most = max(run["nodes"] for run in runs)
    named = [(f"{kib} KiB", kib, cost) for kib, cost in fits.items()]
    named += [(f"{k} KiB, remote as on {most}", k, c) for k, c in crowded(runs, fits).items()]
    nodes = " | ".join(f"{n}" for n in model.NODES)
    lines = [f"| files | {nodes} | all of 64 / 1 | 16 / 4 | 512 / 64 |"]
    lines.append("|---" * (len(model.NODES) + 4) + "|")
    for name, kib, cost in named:
        each = rates(cost, machine, kib)
        cells = " | ".join(f"{each[n]:.0f}" for n in model.NODES)
        ratios = f"{64 * each[64] / each[1]:.1f} | {each[16] / each[4]:.1%}"
        lines.append(f"| {name} | {cells} | {ratios} | {each[512] / each[64]:.1%} |")
    blank = " |" * len(model.NODES)
    lines.append(f"| the paper, 128 KB to 8 MB |{blank} {' | '.join(PAPER_BENCHMARK)} |")
    return lines


def training(fits: dict[int, model.Cost], machine: model.Machine) -> list[str]:
    """Figures 7 and 8."""
    read = rates(fits[128], machine, 128)
    lines = [
        "| | files/s of a node (paper) | efficiency: paper | model, reading overlapped "
        "| model, nothing overlapped |"
    ]
    lines.append("|---" * 5 + "|")
    for name, computed, told in TRAINED:
        for where, begin, end, efficiency in told:
            cells = []
            for overlapped in (True, False):
                of = [model.trained_per_s(read[n], computed, overlapped) for n in (begin, end)]
                cells.append(f"{of[1] / of[0]:.1%}")
            shown = f"{efficiency:.1%}" if efficiency < 1 else "almost 100%"
            lines.append(
                f"| {name}, {where}, {begin} to {end} nodes | {computed} | {shown} "
                f"| {cells[0]} | {cells[1]} |"
            )
    return lines


def plot_costs(runs: list[dict], fits: dict[int, model.Cost], file: Path) -> None:
    """CPU time over the share of local files."""
    figure, axis = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for n, (kib, cost) in enumerate(fits.items()):
        for key, of in groups(runs).items():
            if (key[0], key[1]) == (kib, "none"):
                axis.plot([min(1, key[3] / key[2])] * len(of), list(map(cpu_us, of)), f"C{n}o")
        axis.plot([0, 1], [cost.remote, cost.local], f"C{n}-", label=f"{kib} KiB, fit")
    axis.set_xlabel("share of local files (replicas / nodes)")
    axis.set_ylabel("CPU us a file, process and agents")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend()
    save(figure, file)


def plot_scaling(fits: dict[int, model.Cost], machine: model.Machine, file: Path) -> None:
    """As Figure 6: bandwidth and files a second of all nodes."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for kib, cost in fits.items():
        each = rates(cost, machine, kib)
        files = [n * each[n] for n in model.NODES]
        axes[0].plot(model.NODES, [f * (kib << 10) / 1e6 for f in files], "o-", label=f"{kib} KiB")
        axes[1].plot(model.NODES, files, "o-", label=f"{kib} KiB")
    for axis, label in zip(axes, ("MB/s of all nodes", "files/s of all nodes"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("nodes, one replica")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.suptitle("Model, fitted to CPU costs measured on up to 64 nodes of one machine")
    save(figure, file)


def plot_training(fits: dict[int, model.Cost], machine: model.Machine, file: Path) -> None:
    """As Figures 7 and 8: files a second against perfect scaling."""
    read = rates(fits[128], machine, 128)
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4.2), layout="constrained", sharey=True)
    for axis, (name, computed, told) in zip(axes, TRAINED, strict=True):
        for overlapped, style in ((True, "C0-"), (False, "C1-")):
            of = {n: model.trained_per_s(read[n], computed, overlapped) for n in model.NODES}
            label = f"model, reading {'' if overlapped else 'not '}overlapped"
            axis.plot(model.NODES, [of[n] / computed for n in model.NODES], style, label=label)
        for n, (where, begin, end, efficiency) in enumerate(told):
            ends = [1, efficiency]
            axis.plot([begin, end], ends, f"C{n + 2}o--", label=f"paper, {where}")
        axis.set_xscale("log", base=2)
        axis.set_ylim(0, 1.1)
        axis.set_title(f"{name}, {computed} files/s a node")
        axis.set_xlabel("nodes")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    axes[0].set_ylabel("files/s of a node against training alone")
    save(figure, file)


def save(figure: pyplot.Figure, file: Path) -> None:
    """As a picture."""
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def write(out: Path, about: dict, runs: list[dict], cluster: dict, machine: model.Machine) -> None:
    """All of it, into a directory."""
    out.mkdir(parents=True, exist_ok=True)
    fits = fits_of(runs)
    plot_costs(runs, fits, out / "datasets-cost.png")
    plot_scaling(fits, machine, out / "datasets-scaling.png")
    plot_training(fits, machine, out / "datasets-training.png")
    raw = {**about, "model": vars(machine), "cluster": cluster, "runs": runs}
    (out / "datasets.json").write_text(json.dumps(raw, indent=1) + "\n")
    (out / "datasets.md").write_text("\n".join(text(about, runs, cluster, machine, fits)) + "\n")


def text(
    about: dict, runs: list[dict], cluster: dict, machine: model.Machine, fits: dict
) -> list[str]:
    """The report."""
    on = about["machine"]
    lines = [
        "# Datasets on many nodes",
        "",
        f"`{about['command']}`: {about['date']}, Saker {about['commit']} ({about['build']}), "
        f"{on['cores']} cores, {on['memory_gib']} GiB, Linux {on['kernel']}; load average before: "
        f"{on['load_before']:.2f}.",
        "",
        "Each node is a network namespace at a router, with an agent and a directory of its own. In "
        "an epoch each node reads every file once, in an order of its own, by one process below "
        "libsaker_preload.so (`scripts/nodes/epoch.c`). All files are in the page cache.",
        "",
        "## Measured: requests and bytes",
        "",
        "By the agents' counters and those of the interfaces. FanStore's model (§5.4): a file is "
        "local with probability replicas / nodes; one that is not is one request, and its bytes go "
        "over the network once, as they are stored. Headers are counted before the kernel cuts "
        "what is sent into packets of the interface.",
        "",
        *counts(runs),
        "",
        "## Measured: an epoch without the cluster",
        "",
        f"{cluster['nodes']} nodes have staged a dataset from a cluster of 2 MNodes and 2 stores, "
        "which was frozen there. What the cluster has served:",
        "",
        "| | requests to MNodes | reads of stores |",
        "|---|---|---|",
        f"| staging | {cluster['staging']['mnode']:.0f} | {cluster['staging']['store']:.0f} |",
        f"| {cluster['seconds']:.0f} s before the epoch | {cluster['idle']['mnode']:.0f} "
        f"| {cluster['idle']['store']:.0f} |",
        f"| epoch, {cluster['reads']} reads | {cluster['epoch']['mnode']:.0f} "
        f"| {cluster['epoch']['store']:.0f} |",
        "",
        "## Measured: CPU time",
        "",
        "Microseconds a file: of the process that reads, and of all agents. All nodes share the "
        "machine's cores, with whatever else ran there.",
        "",
        *costs(runs, fits),
        "",
        "![CPU time of a file](datasets-cost.png)",
        "",
        "## Model",
        "",
        "Not measured: what the above lets expect of real nodes. CPU time of a file is "
        "h * local + (1 - h) * remote, h = replicas / nodes, fitted by least squares of the "
        "relative errors:",
        "",
        "| files | local, us | remote, both ends, us | largest error of the fit |",
        "|---|---|---|---|",
        *(
            f"| {kib} KiB | {cost.local:.0f} | {cost.remote:.0f} | {cost.error:.0%} |"
            for kib, cost in fits.items()
        ),
        "",
        "A line does not fit well: here, the CPU time of a remote file grows with the number of "
        "nodes. Why was not examined. All agents share the machine's cores and caches, which real "
        "nodes do not; each is connected to each other one, as on real nodes. The lower rows have "
        "the remote cost of the largest job measured.",
        "",
        f"A node has {machine.cores} cores of this machine's speed and {machine.readers} readers, "
        f"a link of {machine.gbit:.0f} Gbit/s as in the paper's CPU cluster, a round trip of "
        f"{machine.round_trip_us:.0f} us and a disk of {machine.disk_mb:.0f} MB/s. These are "
        "parameters, not measurements. The network has no contention, and data is not cached. "
        "Files a second of a node, one replica:",
        "",
        *predictions(runs, fits, machine),
        "",
        "The last column has the share of local files only, which hardly changes (1.6% to 0.2%). "
        "What the paper loses there must come from what the model does not have, such as a network "
        "that many share.",
        "",
        "![scaling](datasets-scaling.png)",
        "",
        "The paper's Figure 7 (ResNet-50) and Figure 8 (SRGAN) as its text tells them, beside the "
        "model with files of 128 KiB and the paper's rate of one node. The model has the reading "
        "only: what the paper loses to the exchange of gradients is not in it.",
        "",
        *training(fits, machine),
        "",
        "![training](datasets-training.png)",
        "",
        "All figures, of every epoch: [datasets.json](datasets.json).",
    ]
    return lines

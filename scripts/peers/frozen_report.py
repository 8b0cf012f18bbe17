"""Frozen datasets on one node: a report in Markdown, and plots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import report
from matplotlib import pyplot


def size_name(size: int) -> str:
    """Of a file."""
    return f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


def by_size(records: list[dict], phase: str, figure: str) -> dict[str, report.Row]:
    """System, size of files: the median."""
    values: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record["phase"] == phase:
            row = values.setdefault(record["system"], {})
            row.setdefault(size_name(record["size"]), []).append(record[figure])
    return {s: {n: median(v) for n, v in row.items()} for s, row in values.items()}


def write(out: Path, about: dict, records: list[dict], packed: list[dict]) -> None:
    """Frozen datasets on one node."""
    report.raw(out, "frozen", {**about, "packing": packed}, records)
    text = ["# Frozen datasets on one node", "", *report.conditions(about), ""]
    text += ["One program reads all files once, in a random order. CPU time is of this program and"]
    text += ["of all daemons and servers, for each file. Warm: medians of the rounds.", ""]
    text += ["| system | what it is |", "|---|---|"]
    text += [f"| {name} | {system['about']} |" for name, system in about["systems"].items()]
    for phase in ("cold", "warm"):
        text += ["", f"## {phase.capitalize()}: MiB/s, in brackets CPU us of a file", ""]
        text += frozen_table(records, phase)
    text += ["", "![Figure 3](frozen-reading.png)"]
    plot_frozen(records, out / "frozen-reading.png")
    text += ["", "## Bandwidth of compressed files, in relation to uncompressed ones", ""]
    ratios = {
        f"{name}, {phase}": row
        for phase in ("cold", "warm")
        for name, row in compressed_ratios(records, phase).items()
    }
    text += size_table(ratios, lambda value: f"{value:.2f}")
    text += ["", "![Figure 11](frozen-compression.png)"]
    plot_bars(ratios, "bandwidth, in relation to uncompressed", out / "frozen-compression.png")
    text += ["", "## Packing", "", *packing_table(packed)]
    text += ["", *[f"- {problem}" for problem in about["problems"]]]
    (out / "frozen.md").write_text("\n".join(text).rstrip() + "\n")


def size_table(rows: dict[str, report.Row], show: Callable[[float], str]) -> list[str]:
    """A row for each system, a column for each size."""
    sizes = report.unique([size for row in rows.values() for size in row])
    lines = [f"| | {' | '.join(sizes)} |", "|---" * (len(sizes) + 1) + "|"]
    for name, row in rows.items():
        cells = [show(row[size]) if size in row else "-" for size in sizes]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def frozen_table(records: list[dict], phase: str) -> list[str]:
    """Bandwidth and CPU time of all systems."""
    rates, costs = (by_size(records, phase, figure) for figure in ("mib_per_s", "cpu_us"))
    sizes = report.unique([size for row in rates.values() for size in row])
    lines = [f"| | {' | '.join(sizes)} |", "|---" * (len(sizes) + 1) + "|"]
    for name, row in rates.items():
        cells = [f"{row[s]:.0f} ({costs[name][s]:.0f})" if s in row else "-" for s in sizes]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def compressed_ratios(records: list[dict], phase: str) -> dict[str, report.Row]:
    """Of what is compressed: its bandwidth in relation to the same without compression."""
    rates = by_size(records, phase, "mib_per_s")
    ratios = {}
    for name, row in rates.items():
        plain = rates.get(name.rsplit("-", 1)[0])
        if name.endswith(("-lz4", "-zstd")) and plain:
            ratios[name] = {size: row[size] / plain[size] for size in row if size in plain}
    return ratios


def packing_table(packed: list[dict]) -> list[str]:
    """Seconds, and how much smaller, for each size of files."""
    sizes = report.unique([size_name(one["size"]) for one in packed])
    lines = [f"| | {' | '.join(sizes)} |", "|---" * (len(sizes) + 1) + "|"]
    for how in report.unique([one["how"] for one in packed]):
        of = [one for one in packed if one["how"] == how]
        cells = [f"{o['seconds']:.2f} s ({o['bytes'] / o['made']:.2f}x)" for o in of]
        lines.append(f"| {how} | {' | '.join(cells)} |")
    return [*lines, "", "Caches were dropped before; the result is on the disk at the end."]


def plot_frozen(records: list[dict], file: Path) -> None:
    """Bandwidth, files a second and CPU time; cold on the left, warm on the right."""
    figure, axes = pyplot.subplots(3, 2, figsize=(12, 10), layout="constrained")
    kinds = (("mib_per_s", "MiB/s"), ("files_per_s", "files/s"), ("cpu_us", "CPU us of a file"))
    for column, phase in enumerate(("cold", "warm")):
        for row, (name, label) in enumerate(kinds):
            axis = axes[row][column]
            report.bars(axis, by_size(records, phase, name))
            axis.set_ylabel(label)
            axis.set_yscale("log")
            axis.grid(axis="y", alpha=0.3)
        axes[0][column].set_title(phase)
    axes[2][0].legend(ncols=5, fontsize=7, loc="upper left", bbox_to_anchor=(0, -0.1))
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def plot_bars(rows: dict[str, report.Row], label: str, file: Path) -> None:
    """Groups of bars, one for each size."""
    figure, axis = pyplot.subplots(figsize=(9, 4), layout="constrained")
    report.bars(axis, rows)
    axis.set_ylabel(label)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.legend(fontsize=8)
    axis.grid(axis="y", alpha=0.3)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)

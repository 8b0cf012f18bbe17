"""Raw JSON, a table in Markdown, and plots."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median

import goals
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402 - the backend comes first

Row = dict[str, float]


def medians(records: list[dict], program: str, figure: str) -> dict[str, Row]:
    """System, phase: the median of the rounds."""
    values: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record["program"] == program and figure in record:
            row = values.setdefault(record["system"], {})
            row.setdefault(record["phase"], []).append(record[figure])
    return {s: {p: median(v) for p, v in row.items()} for s, row in values.items()}


def unique(items: list[str]) -> list[str]:
    """In the order in which they first appear."""
    return list(dict.fromkeys(items))


def rate(value: float) -> str:
    """Operations a second, as short as three digits allow."""
    if value < 1000:
        return f"{value:.0f}/s"
    return f"{value / 1000:.1f}k/s" if value < 99950 else f"{value / 1000:.0f}k/s"


def cell(records: list[dict], system: str, program: str, phase: str) -> str:
    """Throughput and CPU time of one system in one phase."""
    of = [r for r in records if (r["system"], r["program"], r["phase"]) == (system, program, phase)]
    if not of:
        return "-"
    if "ratio" in of[0]:
        return f"{median(r['ratio'] for r in of):.2f}"
    errors = sum(r["errors"] for r in of)
    text = f"{rate(median(r['ops_per_s'] for r in of))} ({median(r['cpu_us'] for r in of):.0f})"
    return f"{text}, {errors} errors" if errors else text


def table(records: list[dict], program: str) -> list[str]:
    """One program on all systems."""
    mine = [record for record in records if record["program"] == program]
    phases = unique([record["phase"] for record in mine])
    lines = [f"| | {' | '.join(phases)} |", "|---" * (len(phases) + 1) + "|"]
    for system in unique([record["system"] for record in mine]):
        cells = [cell(mine, system, program, phase) for phase in phases]
        lines.append(f"| {system} | {' | '.join(cells)} |")
    return lines


def slug(text: str) -> str:
    """As part of a file name."""
    return "-".join("".join(c if c.isalnum() else " " for c in text).split())


def plot(records: list[dict], program: str, file: Path) -> None:
    """Throughput above, CPU time below, a group of bars for each phase."""
    figure, axes = pyplot.subplots(2, 1, figsize=(11, 7), layout="constrained")
    kinds = (("ops_per_s", "operations a second"), ("cpu_us", "CPU us per operation"))
    for axis, (name, label) in zip(axes, kinds, strict=True):
        bars(axis, medians(records, program, name))
        axis.set_ylabel(label)
        axis.set_yscale("log")
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_title(program)
    axes[0].legend(ncols=5, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def bars(axis: pyplot.Axes, rows: dict[str, Row]) -> None:
    """Groups of bars, one for each phase."""
    phases = unique([phase for row in rows.values() for phase in row])
    width = 0.85 / max(len(rows), 1)
    colours = pyplot.get_cmap("tab20").colors
    for n, (system, row) in enumerate(rows.items()):
        places = [i + (n - (len(rows) - 1) / 2) * width for i in range(len(phases))]
        heights = [row.get(phase, 0) for phase in phases]
        axis.bar(places, heights, width, label=system, color=colours[n % len(colours)])
    axis.set_xticks(range(len(phases)), phases)


def conditions(about: dict) -> list[str]:
    """Where and when it was measured."""
    machine, plan = about["machine"], about["plan"]
    rounds = about["rounds"]
    turns = f"{rounds} rounds, every second one in reverse order" if rounds > 1 else "1 round"
    return [
        f"{about['date']}, Saker {about['commit']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['disk']}, Linux {machine['kernel']}; load average "
        f"before: {machine['load_before']:.2f}; {turns}. "
        f"Plan: {', '.join(f'{k} {v}' for k, v in plan.items())}.",
    ]


def raw(out: Path, name: str, about: dict, records: list[dict]) -> None:
    """All figures, as they are."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps({**about, "records": records}, indent=1) + "\n")


def read(out: Path, name: str) -> tuple[dict, list[dict]]:
    """What `raw` has written."""
    about = json.loads((out / f"{name}.json").read_text())
    return about, about.pop("records")


def write(out: Path, about: dict, records: list[dict]) -> None:
    """All of it, into a directory."""
    raw(out, "peers", about, records)
    text = ["# Side by side", "", *conditions(about), ""]
    text += ["Through a mount: operations a second, and in brackets CPU microseconds per operation"]
    text += ["(the program that measures, FUSE daemon and servers). Medians of the rounds.", ""]
    text += ["| system | version | configuration |", "|---|---|---|"]
    for name, system in about["systems"].items():
        text.append(f"| {name} | {system['version']} | {system['about']} |")
    for program in unique([record["program"] for record in records]):
        file = f"peers-{slug(program)}.png"
        plot(records, program, out / file)
        text += ["", f"## {program[0].upper()}{program[1:]}", "", *table(records, program)]
        text += ["", f"![{program}]({file})"]
    text += ["", "## Aims", "", "Ratios of the medians, and of each round. An aim is kept if the"]
    text += ["median of the rounds' ratios keeps it, too.", "", *goals.table(records)]
    if about["problems"]:
        text += ["", "## What went wrong", ""]
        text += [f"- {problem}" for problem in about["problems"]]
    (out / "peers.md").write_text("\n".join(text) + "\n")


def write_traverse(out: Path, about: dict, records: list[dict]) -> None:
    """The traversal with limited memory."""
    raw(out, "traverse", about, records)
    text = ["# Random traversal with limited memory of the client", "", *conditions(about), ""]
    text += ["| system | budget | limit | peak | files/s | CPU us | metadata requests per open |"]
    text += ["|---" * 7 + "|"]
    for r in records:
        text.append(
            f"| {r['system']} | {r['budget']}% | {r['limit'] / 2**20:.0f} MiB "
            f"| {r['peak'] / 2**20:.0f} MiB | {r['ops_per_s']:.0f} | {r['cpu_us']:.0f} "
            f"| {requests(r)} |"
        )
    text += ["", "![traversal](traverse.png)", ""]
    text += [f"- {name}: {system['about']}" for name, system in about["systems"].items()]
    text += [f"- {problem}" for problem in about["problems"]]
    (out / "traverse.md").write_text("\n".join(text) + "\n")
    plot_traverse(records, out / "traverse.png")


def requests(record: dict) -> str:
    """Metadata requests for each open, by kind where the servers tell."""
    kinds = record.get("requests_per_op") or {}
    if shown := [f"{kind} {count:.3f}" for kind, count in kinds.items() if count >= 0.0005]:
        return ", ".join(shown)
    count = record["metadata_requests_per_op"]
    return "-" if count is None else f"{count:.3f}"


def plot_traverse(records: list[dict], file: Path) -> None:
    """Throughput and requests over the budget."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    kinds = (("ops_per_s", "files a second"), ("metadata_requests_per_op", "requests per open"))
    for axis, (name, label) in zip(axes, kinds, strict=True):
        for system in unique([record["system"] for record in records]):
            of = [r for r in records if r["system"] == system and r[name] is not None]
            budgets = sorted({record["budget"] for record in of})
            means = [mean(r[name] for r in of if r["budget"] == budget) for budget in budgets]
            axis.plot(budgets, means, "o-", label=system)
        axis.set_xlabel("budget, % of all inodes and dentries")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def plan_of(plan: object) -> dict:
    """A plan's fields."""
    return asdict(plan)  # type: ignore[call-overload]

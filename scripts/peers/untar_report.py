"""An untar and a checkpoint: a report in Markdown, and a plot."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import report
from matplotlib import pyplot

PROGRAMS = {
    "tar": "tar x of the source tree",
    "checkpoint": "The checkpoint: each file flushed (fsync) and renamed",
}


def write(out: Path, about: dict, records: list[dict]) -> None:
    """All of it, into a directory."""
    report.raw(out, "untar", about, records)
    text = ["# An untar and a checkpoint under policies", "", *report.conditions(about), ""]
    text += ["By `make untar`. Through a mount; all servers are on the same machine. `publish` is the"]
    text += ["merge, where there is something to merge, and sync(1). Then the client is mounted anew,"]
    text += ["and the trees are compared by `diff -r` and `rsync -anicHAX`: they were equal wherever"]
    text += ["there are figures. CPU seconds are of the program, the mount and the servers.", ""]
    text += ["| system | version | what it is |", "|---|---|---|"]
    for name, system in about["systems"].items():
        text.append(f"| {name} | {system['version']} | {system['about']} |")
    for program, title in PROGRAMS.items():
        text += ["", f"## {title}", ""]
        text += ["| system | write, s | publish, s | together, s | CPU, s |", "|---" * 5 + "|"]
        for name in report.unique([r["system"] for r in records]):
            write_, publish = (middle(records, name, program, p) for p in ("write", "publish"))
            cpu = sum(middle(records, name, program, p, "cpu_s") for p in ("write", "publish"))
            both = write_ + publish
            text.append(f"| {name} | {write_:.2f} | {publish:.2f} | {both:.2f} | {cpu:.2f} |")
    text += ["", "![untar](untar.png)", ""]
    plot(records, out / "untar.png")
    text += [f"- {problem}" for problem in about["problems"]]
    (out / "untar.md").write_text("\n".join(text).rstrip() + "\n")


def middle(
    records: list[dict], system: str, program: str, phase: str, figure: str = "seconds"
) -> float:
    """The median of the rounds."""
    wanted = (system, program, phase)
    return median(
        r[figure] for r in records if (r["system"], r["program"], r["phase"]) == wanted
    )


def plot(records: list[dict], file: Path) -> None:
    """Both programs; publishing on top of writing."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    systems = report.unique([r["system"] for r in records])
    for axis, program in zip(axes, PROGRAMS, strict=True):
        below = [middle(records, system, program, "write") for system in systems]
        above = [middle(records, system, program, "publish") for system in systems]
        axis.bar(systems, below, label="write")
        axis.bar(systems, above, bottom=below, label="publish")
        axis.set_title(program)
        axis.set_ylabel("seconds")
        axis.tick_params(axis="x", labelrotation=20, labelsize=8)
        axis.grid(axis="y", alpha=0.3)
    axes[0].legend()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)

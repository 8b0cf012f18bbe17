"""Policies of subtrees: a report in Markdown, and plots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median, pstdev

import report
from matplotlib import pyplot

Records = list[dict]


def middle(records: Records, figure: str = "seconds", **where: object) -> float | None:
    """The median of the records with these values."""
    of = [r[figure] for r in records if all(r.get(k) == v for k, v in where.items())]
    return median(of) if of else None


class Mechanisms:
    """Seconds of each mechanism for so many creates, from the compositions that were measured."""

    def __init__(self, records: Records, creates: int) -> None:
        self.records = [r for r in records if r.get("creates") == creates]

    def phase(self, composition: str, phase: str, figure: str = "seconds") -> float | None:
        """Of a composition."""
        return middle(self.records, figure, composition=composition, phase=phase)

    def sum(self, composition: str, *phases: str) -> float | None:
        """Phases of a composition, one after the other."""
        parts = [self.phase(composition, phase) for phase in phases]
        return None if None in parts else sum(parts)  # type: ignore[arg-type]

    @property
    def append(self) -> float:
        """To what all are related."""
        return self.phase("invisible/none", "create") or 1.0

    def all(self) -> dict[str, float | None]:
        """Figure 6."""
        sum_ = self.sum
        return {
            "append_client_journal": self.append,
            "rpcs": self.phase("strong/none", "create"),
            "rpcs+stream": self.phase("strong/global", "create"),
            "stream": less(self.phase("strong/global", "create"), self.phase("strong/none", "create")),
            "local_persist": less(sum_("invisible/local", "create", "persist"), self.append),
            "global_persist": less(sum_("invisible/global", "create", "persist"), self.append),
            "volatile_apply": self.phase("invisible/none", "merge"),
            "nonvolatile_apply": self.phase("nonvolatile", "merge"),
            "list": self.phase("invisible/none", "list"),
        }

    def semantics(self) -> dict[str, float | None]:
        """Figure 9."""
        return {
            "strong": self.phase("strong/global", "create"),
            "strong, no fault tolerance": self.phase("strong/none", "create"),
            "weak": self.sum("weak/local", "create", "persist", "merge"),
            "weak, no fault tolerance": self.sum("weak/none", "create", "merge"),
        }


def less(a: float | None, b: float | None) -> float | None:
    """A difference, where both were measured. Noise does not make it negative."""
    return None if a is None or b is None else max(a - b, 0.0)


def number(count: int) -> str:
    """As in a table."""
    return f"{count // 1_000_000}M" if count >= 1_000_000 else f"{count // 1_000}k"


def relation(value: float | None) -> str:
    """To the client's journal in memory."""
    return "-" if value is None else f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def write(out: Path, about: dict, records: Records) -> None:
    """All of it, into a directory."""
    report.raw(out, "policies", about, records)
    text = ["# Policies of subtrees", "", *report.conditions(about), ""]
    text += ["By `make policies`. One client makes empty files in one directory through LibFS, one"]
    text += ["after the other. All servers are on the same machine. Medians of the rounds.", ""]
    text += [f"- {name}: {system['about']}" for name, system in about["systems"].items()]
    figures: dict[str, Callable[[Path, Records], list[str]]] = {
        "mechanisms": mechanisms,
        "merges": merges,
        "rogue": rogue,
        "syncing": syncing,
    }
    for name, section in figures.items():
        if of := [r for r in records if r["figure"] == name]:
            text += ["", *section(out, of)]
    text += ["", *[f"- {problem}" for problem in about["problems"]]]
    (out / "policies.md").write_text("\n".join(text).rstrip() + "\n")


def mechanisms(out: Path, records: Records) -> list[str]:
    """Figures 6 and 9."""
    creates = sorted({r["creates"] for r in records})
    by_count = {count: Mechanisms(records, count) for count in creates}
    heads = [number(count) for count in creates]
    text = ["## Each mechanism (Figure 6)", ""]
    text += ["Seconds, and in relation to the same number of creates in the client's journal in"]
    text += ["memory. `stream` is strong/global less strong/none; persisting is creating and saving"]
    text += ["less creating in memory. `list`: all names are read by the client that made them."]
    text += ["", f"| mechanism | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    rows = {count: m.all() for count, m in by_count.items()}
    text += related(rows, by_count)
    bars(out / "policies-mechanisms.png", rows, by_count)
    text += ["", "![Figure 6](policies-mechanisms.png)", "", "CPU us for each file, of the client and"]
    text += ["all servers:", "", f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name in report.unique([r["composition"] for r in records]):
        for phase in report.unique([r["phase"] for r in records if r["composition"] == name]):
            values = [by_count[count].phase(name, phase, "cpu_us") for count in creates]
            cells = ["-" if value is None else f"{value:.1f}" for value in values]
            text.append(f"| {name}, {phase} | {' | '.join(cells)} |")
    text += ["", "## Strong and weak consistency (Figure 9)", ""]
    text += ["From the first create until all is where the policy wants it, merged and persisted."]
    text += ["", f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    rows = {count: m.semantics() for count, m in by_count.items()}
    text += related(rows, by_count)
    bars(out / "policies-semantics.png", rows, by_count)
    return [*text, "", "![Figure 9](policies-semantics.png)"]


def related(
    rows: dict[int, dict[str, float | None]], by_count: dict[int, Mechanisms]
) -> list[str]:
    """A row for each name: seconds and relation."""
    lines = []
    for name in next(iter(rows.values())):
        cells = []
        for count, row in rows.items():
            value = row[name]
            shown = "-" if value is None else f"{value:.3f} s"
            ratio = None if value is None else value / by_count[count].append
            cells.append(f"{shown} ({relation(ratio)})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def bars(
    file: Path, rows: dict[int, dict[str, float | None]], by_count: dict[int, Mechanisms]
) -> None:
    """A group for each name, a bar for each number of creates."""
    figure, axis = pyplot.subplots(figsize=(11, 4.5), layout="constrained")
    shown = {
        f"{number(count)} creates": {
            name: value / by_count[count].append for name, value in row.items() if value
        }
        for count, row in rows.items()
    }
    report.bars(axis, shown)
    axis.set_yscale("log")
    axis.set_ylabel("time, in relation to append_client_journal")
    axis.axhline(1, color="black", linewidth=0.8)
    axis.tick_params(axis="x", labelrotation=15, labelsize=8)
    axis.legend(fontsize=8)
    axis.grid(axis="y", alpha=0.3)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def merges(out: Path, records: Records) -> list[str]:
    """Figure 8."""
    text = ["## Merging journals of all sizes (Figure 8)", ""]
    text += ["One merge after the other, each into a directory of its own.", ""]
    text += ["| cluster | creates | merges | seconds | standard deviation | creates/s | CPU us |"]
    text += ["|---" * 7 + "|"]
    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for system in report.unique([r["system"] for r in records]):
        mine = [r for r in records if r["system"] == system]
        sizes = sorted({r["creates"] for r in mine})
        times = [[r["seconds"] for r in mine if r["creates"] == size] for size in sizes]
        for size, of in zip(sizes, times, strict=True):
            cpu = middle(mine, "cpu_us", creates=size)
            middle_ = median(of)
            text.append(
                f"| {system} | {size} | {len(of)} | {middle_:.3f} | {pstdev(of):.3f} "
                f"| {size / middle_:.0f} | {cpu:.1f} |"
            )
        errors = [pstdev(of) for of in times]
        axis.errorbar(sizes, [median(of) for of in times], yerr=errors, fmt="o-", label=system)
    finish(figure, axis, "creates in the journal", "seconds of a merge", out / "policies-merges.png")
    return [*text, "", "![Figure 8](policies-merges.png)"]


def rogue(out: Path, records: Records) -> list[str]:
    """Figure 10."""
    text = ["## Clients that interfere (Figure 10)", ""]
    text += ["Clients make files in directories of their own under strong/global. `isolated`: alone;"]
    text += ["`block` and `allow`: another client creates in all of their directories all the time;"]
    text += ["`merging`: with block, another client makes and merges a subtree of its own all the time."]
    text += ["Seconds are medians of all clients and rounds. The other client needs a share of the cores,"]
    text += ["too: CPU us are of the clients that are measured.", ""]
    text += ["| clients | case | seconds | in relation to isolated | CPU us per create, client |"]
    text += ["|---" * 5 + "|"]
    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    cases = report.unique([r["case"] for r in records])
    counts = sorted({r["clients"] for r in records})
    for case in cases:
        ratios = []
        for clients in counts:
            alone = middle(records, clients=clients, case="isolated") or 1.0
            mine = middle(records, clients=clients, case=case) or 0.0
            cpu = middle(records, "cpu_us", clients=clients, case=case)
            ratios.append(mine / alone)
            text.append(f"| {clients} | {case} | {mine:.2f} | {mine / alone:.2f} | {cpu:.1f} |")
        axis.plot(counts, ratios, "o-", label=case)
    finish(figure, axis, "clients", "time, in relation to isolated", out / "policies-rogue.png")
    return [*text, "", "![Figure 10](policies-rogue.png)"]


def syncing(out: Path, records: Records) -> list[str]:
    """Figure 11."""
    text = ["## Merging while one goes on (Figure 11)", ""]
    text += ["One client makes files under weak/none, and merges in the background.", ""]
    text += ["| sync_interval | seconds | in relation to none | CPU us per create |", "|---" * 4 + "|"]
    never = middle(records, interval="none") or 1.0
    intervals = [i for i in report.unique([r["interval"] for r in records]) if i != "none"]
    intervals.sort(key=seconds_of)
    for interval in ["none", *intervals]:
        time, cpu = (middle(records, name, interval=interval) or 0 for name in ("seconds", "cpu_us"))
        text.append(f"| {interval} | {time:.2f} | {time / never:.2f} | {cpu:.1f} |")
    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    slowdowns = [100 * ((middle(records, interval=i) or 0) / never - 1) for i in intervals]
    axis.plot([seconds_of(i) for i in intervals], slowdowns, "o-", label="weak/none")
    axis.set_xscale("log")
    finish(figure, axis, "sync_interval, s", "slower than without, %", out / "policies-syncing.png")
    return [*text, "", "![Figure 11](policies-syncing.png)"]


def seconds_of(interval: str) -> float:
    """Of a key's value."""
    return float(interval[:-2]) / 1000 if interval.endswith("ms") else float(interval[:-1])


def finish(
    figure: pyplot.Figure, axis: pyplot.Axes, x: str, y: str, file: Path
) -> None:
    """What all lines have."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)

"""Write the figures as Markdown: all of them in `docs/figures.md`, a few in the README and the comparison page,
between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peers.tasks import WORKS

BEGIN, END = "<!-- bench-peers: begin -->", "<!-- bench-peers: end -->"
FLOOR = "raw_httpx"
SHORT = ["single", "loop50", "loop200", "stream100", "many200"]
HEAVY = {"import", "first", "many200"}
NO_PARTIALS = {"raw_httpx", "raw_aiohttp", "raw_litellm"}
"""They read a stream without showing any of it on the way."""

HOW = """\
CPU is that of the contender's process alone, the server is another one; wall time holds both. Every result is checked:
the typed answer, the number of requests, the tools that ran, the partial answers. Everyone does the work as its own
documentation has it, with telemetry and caches off. "Over" is the wall time of a work with its warm-up and
repeats, after which nobody waited for it.

\\*: the raw ones read the stream without partial answers."""


def number(value: float) -> str:
    """Three digits, no more."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


class Notes:
    """List the reasons for empty cells, each once."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def mark(self, reason: str) -> str:
        if reason.startswith("over "):
            return reason
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"- ({self.reasons.index(reason) + 1})"

    def lines(self) -> list[str]:
        return [f"({at}) {reason}  " for at, reason in enumerate(self.reasons, 1)]


def ratio(figures: dict[str, Any], name: str, work: str, measured: str = "cpu") -> float | None:
    """Return a contender's figure relative to raw httpx."""
    cell = figures["contenders"][name]["cells"].get(work, {})
    floor = figures["contenders"].get(FLOOR, {"cells": {}})["cells"].get(work, {})
    return cell[measured] / floor[measured] if measured in cell and floor.get(measured) else None


def grid(header: list[str], rows: list[list[str]]) -> list[str]:
    rule = "|---|" + "---:|" * (len(header) - 1)
    return [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def title_of(row: dict[str, Any]) -> str:
    return f"**{row['title']}**" if row["ours"] else str(row["title"])


def cell_text(figures: dict[str, Any], name: str, work: str, measured: str, notes: Notes) -> str:
    """`ratio` to raw httpx, `cpu` and `wall` in ms, `peak` in MB."""
    cell = figures["contenders"][name]["cells"].get(work, {"none": "not measured"})
    if "none" in cell:
        return notes.mark(cell["none"])
    if measured == "ratio":
        value = ratio(figures, name, work)
        text = "" if value is None else number(value)
    else:
        text = number(cell[measured] * (1 if measured == "peak" else 1000))
    return f"{text}*" if name in NO_PARTIALS and work.startswith("stream") else text


def part(figures: dict[str, Any], measured: str, works: list[str], notes: Notes) -> list[str]:
    rows = [
        [title_of(row), *(cell_text(figures, name, work, measured, notes) for work in works)]
        for name, row in figures["contenders"].items()
    ]
    return grid(["", *(WORKS[work] for work in works)], rows)


def noted(figures: dict[str, Any]) -> list[str]:
    """Describe the circumstances of this run."""
    return [str(figures["note"])] if "note" in figures else []


def whole(figures: dict[str, Any]) -> str:
    """Return the page with all figures."""
    notes = Notes()
    present = [work for work in WORKS if any(work in row["cells"] for row in figures["contenders"].values())]
    heavy = [work for work in present if work in HEAVY]
    lines = ["# Beside others", "", f"Measured on {figures['date']} with Python {figures['python']} by"]
    lines += [f"`make bench-peers`, medians of the rounds ({figures['rounds']}).", *noted(figures), "", HOW]
    if FLOOR in figures["contenders"]:
        lines += ["", "## CPU time, raw httpx = 1", "", *part(figures, "ratio", present, notes)]
    lines += ["", "## CPU time in ms", "", *part(figures, "cpu", present, notes)]
    lines += ["", "## Wall time in ms", "", *part(figures, "wall", present, notes)]
    if heavy:
        lines += ["", "## Peak memory in MB", "", *part(figures, "peak", heavy, notes)]
    if notes.reasons:
        lines += ["", "## Empty cells", "", *notes.lines()]
    lines += ["", "## Versions", ""]
    for row in figures["contenders"].values():
        told = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        lines.append(f"- {row['title']}: {told or 'not installed'}")
    return "\n".join(line.rstrip() if line.startswith("|") else line for line in lines) + "\n"


def short(figures: dict[str, Any]) -> str:
    """Return the section of the README."""
    notes = Notes()
    rows = []
    for name, row in figures["contenders"].items():
        first = [cell_text(figures, name, "first", each, notes) for each in ("cpu", "peak")]
        rows.append([title_of(row), *first, *(cell_text(figures, name, work, "ratio", notes) for work in SHORT)])
    header = ["", "first answer, ms", "MB", *(WORKS[work] for work in SHORT)]
    lines = [
        "![CPU time of acorn and others, as ratios to raw httpx](docs/bench.svg)",
        "",
        "CPU time, raw httpx = 1; the first two columns are CPU time and peak memory from the start of Python to the",
        f"first answer. Measured on {figures['date']} with Python {figures['python']};",
        "[all figures, versions and how](docs/figures.md).",
        *noted(figures),
        "",
        *grid(header, rows),
        "",
        "\\* reads the stream without partial answers.",
        *([" ".join(line.strip() for line in notes.lines())] if notes.reasons else []),
    ]
    return "\n".join(lines)


def beside(figures: dict[str, Any], names: Sequence[str]) -> str:
    """Return the section of the comparison page: some contenders and their versions."""
    notes = Notes()
    contenders = {name: figures["contenders"][name] for name in names if name in figures["contenders"]}
    works = ["first", *SHORT]
    rows = [
        [title_of(row), *(cell_text(figures, name, work, "cpu", notes) for work in works)]
        for name, row in contenders.items()
    ]
    versions = [
        f"{row['title']}: {', '.join(f'{name} {version}' for name, version in row['versions'].items())}"
        for row in contenders.values()
    ]
    lines = [
        f"CPU time in ms, measured on {figures['date']} with Python {figures['python']}.",
        *noted(figures),
        "",
        *grid(["", *(WORKS[work] for work in works)], rows),
        "",
        "\\* reads the stream without partial answers.",
        *([" ".join(line.strip() for line in notes.lines())] if notes.reasons else []),
        "",
        f"Versions: {'; '.join(versions)}.",
    ]
    return "\n".join(lines)


def into(page: str, part: str) -> str:
    """Return a page with a new section between the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page lacks the marks `{BEGIN}` and `{END}`; put them where the figures belong")
    return f"{before}{BEGIN}\n{part}\n{END}{after}"

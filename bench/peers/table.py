"""Format the results as Markdown tables for `docs/figures.md`, the README and the comparison page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peers.tasks import WORKS

BEGIN, END = "<!-- bench-peers: begin -->", "<!-- bench-peers: end -->"
FLOOR = "raw_httpx"
SHORT = ["single", "loop50", "loop200", "stream100", "many200"]
HEAVY = {"import", "first", "many200"}
NO_PARTIALS = {"raw_httpx", "raw_aiohttp", "raw_litellm"}
"""The contenders that read a stream but create no partial answers."""

HOW = """\
CPU time is the time of the contender's process. The server is a separate process, and wall time includes both. The
benchmark checks every result: the typed answer, the number of requests, the tool calls and the partial answers. Each
program follows the documentation of its framework, with telemetry and caches off. "Over 120 s" means that a task, with
its warm-up and repetitions, exceeded this time limit.

\\*: the raw programs read the stream without partial answers."""


def number(value: float) -> str:
    """Format a number with about three digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


class Notes:
    """A numbered list of the reasons for empty cells, without repetitions."""

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
    """Return the ratio of a contender's result to the result of raw httpx, or None if one of them is missing."""
    cell = figures["contenders"][name]["cells"].get(work, {})
    floor = figures["contenders"].get(FLOOR, {"cells": {}})["cells"].get(work, {})
    return cell[measured] / floor[measured] if measured in cell and floor.get(measured) else None


def grid(header: list[str], rows: list[list[str]]) -> list[str]:
    rule = "|---|" + "---:|" * (len(header) - 1)
    return [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def title_of(row: dict[str, Any]) -> str:
    return f"**{row['title']}**" if row["ours"] else str(row["title"])


def cell_text(figures: dict[str, Any], name: str, work: str, measured: str, notes: Notes) -> str:
    """Format one result: `ratio` relative to raw httpx, `cpu` and `wall` in milliseconds, or `peak` in megabytes."""
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
    """Return the note about the measurement as a list of lines, or [] if there is no note."""
    return [str(figures["note"])] if "note" in figures else []


def whole(figures: dict[str, Any]) -> str:
    """Return the page `docs/figures.md` with all results."""
    notes = Notes()
    present = [work for work in WORKS if any(work in row["cells"] for row in figures["contenders"].values())]
    heavy = [work for work in present if work in HEAVY]
    lines = [
        "# Comparison with other frameworks",
        "",
        f"Measured on {figures['date']} with Python {figures['python']} by",
    ]
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
    """Return the README section with the most important results."""
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
    """Return the section of the comparison page with the results and versions of some contenders."""
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
    """Replace the section between the two marks of a page."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"The page lacks the marks `{BEGIN}` and `{END}`. Add both marks around the section.")
    return f"{before}{BEGIN}\n{part}\n{END}{after}"

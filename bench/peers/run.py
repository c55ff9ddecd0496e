"""`make bench-peers`: run all contenders on all tasks, then write the table, the chart and the section of the README.

PYTHONPATH=bench python -m peers.run                                    everything; writes the files
PYTHONPATH=bench python -m peers.run --only acorn_native,raw_httpx --works loop10,single --rounds 3    prints only
PYTHONPATH=bench python -m peers.run --page                             the programs of docs/why.md, without measuring

A round starts a process for each contender and goes through the tasks; all contenders do a task before the next one
starts, so that noise affects all alike. A task is repeated in its process for one second. The figure is the median of
the rounds' medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from statistics import median
from typing import Any, cast

from peers import chart, table
from peers.environments import CACHE, CONTENDERS, ROOT, Contender, MissingPeerError, python_of, variables
from peers.shown import PAGE, TABS
from peers.tasks import WORKS, kind_of, requests_of

FIGURES = ROOT / "bench" / "peers" / "figures.json"
README = ROOT / "README.md"
COMPARED = ["acorn_native", "raw_httpx", "pydantic_ai", "langgraph", "dspy", "smolagents"]
"""Those whose code stands on that page."""
ON_PAGE = "page3"
Cell = dict[str, Any]


class StuckError(Exception):
    """A process did not answer in time, or not at all."""


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


@contextmanager
def serving() -> Iterator[str]:
    command = [sys.executable, "-m", "peers.server"]
    env = {"PYTHONPATH": str(ROOT / "bench")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def take(root: str) -> dict[str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{root}/take", timeout=30) as response:
        return cast("dict[str, Any]", json.load(response))


class Process:
    """A contender at work."""

    def __init__(self, contender: Contender, python: str, root: str) -> None:
        CACHE.mkdir(exist_ok=True)
        self.log = (CACHE / f"{contender.name}.log").open("a", encoding="utf-8")
        self.process = subprocess.Popen(
            [python, "-m", "peers.work", contender.name, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**variables(contender), "PEERS_BEGAN": str(time.monotonic())},
        )

    def told(self, patience: float) -> dict[str, Any]:
        """Its next line."""
        stdout = self.process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], patience)[0]:
            raise StuckError(f"over {patience:g} s")
        line = stdout.readline()
        if not line:
            raise StuckError("the process ended; its log is in `.bench/`")
        return cast("dict[str, Any]", json.loads(line))

    def do(self, work: str, patience: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{work}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError as broken:
            raise StuckError("the process ended; its log is in `.bench/`") from broken
        return self.told(patience)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()


def without_paths(words: str) -> str:
    """Format a failure for a table: one line, without paths and addresses."""
    short = re.sub(r"https?://\S+|(?:/[\w.@-]+)+/?", "…", " ".join(words.split()))
    return short if len(short) < 120 else f"{short[:119]}…"


class Series:
    """The results of one contender over all rounds."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.python = ""
        self.process: Process | None = None
        self.versions: dict[str, str] = {}
        self.found: dict[str, list[Cell]] = {}
        self.none: dict[str, str] = {}
        """Why a work has no figures."""

    def begin(self, root: str, works: list[str], patience: float) -> None:
        """Start the process, which reports the cost of its import."""
        self.end()
        self.process = Process(self.contender, self.python, root)
        try:
            hello = self.process.told(patience)
        except StuckError as stuck:
            self.none = dict.fromkeys(works, str(stuck))
            return
        self.versions = hello["versions"]
        for work in works:
            if reason := hello["cannot"].get(kind_of(work)[0]):
                self.none[work] = reason
        self.keep("import", hello["import"])

    def keep(self, work: str, told: dict[str, Any]) -> None:
        cell = {"cpu": median(told["cpu"]), "wall": median(told["wall"]), "peak": told["peak"]}
        self.found.setdefault(work, []).append(cell)

    def do(self, work: str, root: str, patience: float) -> None:
        if self.process is None or work in self.none:
            return
        take(root)
        try:
            told = self.process.do(work, patience)
        except StuckError as stuck:
            self.none[work] = str(stuck)
            self.give_up_more(work)
            self.begin(root, [], patience)
            return
        came = take(root)
        wanted = told.get("runs", 0) * (requests_of(work) + told.get("requests_more", 0))
        if "error" in told:
            self.none[work] = f"failed: {without_paths(told['error'])}"
        elif came["requests"] != wanted:
            self.none[work] = f"failed: {came['requests']} requests where {wanted} are needed"
        else:
            self.keep(work, told)

    def give_up_more(self, work: str) -> None:
        """Skip longer versions of a task that takes too long."""
        kind, size = kind_of(work)
        for other in WORKS:
            if kind_of(other)[0] == kind and kind_of(other)[1] > size:
                self.none.setdefault(other, self.none[work])

    def end(self) -> None:
        if self.process is not None:
            self.process.end()
            self.process = None

    def cells(self, works: list[str]) -> dict[str, Cell]:
        cells: dict[str, Cell] = {}
        for work in works:
            if work in self.none or work not in self.found:
                cells[work] = {"none": self.none.get(work, "not measured")}
            else:
                each = self.found[work]
                cells[work] = {name: round(median(cell[name] for cell in each), 6) for name in ("cpu", "wall", "peak")}
        return cells


def measure(contenders: list[Contender], works: list[str], rounds: int, patience: float) -> dict[str, Any]:
    all_series = [Series(contender) for contender in contenders]
    for series in all_series:
        say(f"environment of {series.contender.title}")
        try:
            series.python = python_of(series.contender)
        except MissingPeerError as missing:
            series.none = dict.fromkeys(works, str(missing))
    with serving() as root:
        try:
            for at in range(rounds):
                for series in (each for each in all_series if each.python):
                    say(f"round {at + 1} of {rounds}: import, {series.contender.title}")
                    series.begin(root, works, patience)
                # Always make the first call: later ones depend on what it loads.
                for work in [each for each in WORKS if each == "first" or (each in works and each != "import")]:
                    for series in all_series:
                        say(f"round {at + 1} of {rounds}: {work}, {series.contender.title}")
                        series.do(work, root, patience)
        except KeyboardInterrupt:
            say("stopped; what was measured until now counts")
        finally:
            for series in all_series:
                series.end()
    rows = {
        series.contender.name: {
            "title": series.contender.title,
            "ours": series.contender.ours,
            "versions": series.versions,
            "cells": series.cells(works),
        }
        for series in all_series
    }
    told = {"date": date.today().isoformat(), "python": platform.python_version(), "rounds": rounds}
    return {**told, "contenders": rows}


def try_the_page(contenders: list[Contender], patience: float) -> None:
    """Run the programs of the page unchanged, each in its contender's environment."""
    with serving() as root:
        for contender in (each for each in contenders if each.name in TABS):
            say(f"page: {contender.title}")
            process = Process(contender, python_of(contender), root)
            try:
                process.told(patience)
                take(root)
                told, came = process.do(ON_PAGE, patience), take(root)
            finally:
                process.end()
            wanted = requests_of(ON_PAGE) + told.get("requests_more", 0)
            if "error" in told or came["requests"] != wanted:
                why = told.get("error", f"{came['requests']} requests where {wanted} are needed")
                sys.exit(f"the program of {contender.title} in docs/why.md does not do its work: {why}")


def chosen(given: str | None, all_of_them: list[str], what: str) -> list[str]:
    names = given.split(",") if given else all_of_them
    if unknown := [name for name in names if name not in all_of_them]:
        sys.exit(f"no {what} is called `{unknown[0]}`; there are: {', '.join(all_of_them)}")
    return names


def write(figures: dict[str, Any]) -> None:
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (ROOT / "docs" / "figures.md").write_text(table.whole(figures), encoding="utf-8")
    (ROOT / "docs" / "bench.svg").write_text(chart.svg(figures), encoding="utf-8")
    for page, part in ((README, table.short(figures)), (PAGE, table.beside(figures, COMPARED))):
        page.write_text(table.into(page.read_text(encoding="utf-8"), part), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="peers.run", description="acorn beside others, at the same work")
    parser.add_argument("--only", help="names of contenders, with commas between them; prints, writes nothing")
    parser.add_argument("--works", help=f"some of {', '.join(WORKS)}; prints, writes nothing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=120, help="seconds that a work may take")
    parser.add_argument("--page", action="store_true", help="run the programs of docs/why.md, and measure nothing")
    parser.add_argument("--again", action="store_true", help="make the files from the kept figures, without measuring")
    given = parser.parse_args()
    if given.again:
        write(json.loads(FIGURES.read_text(encoding="utf-8")))
        return
    names = chosen(given.only, [each.name for each in CONTENDERS], "contender")
    works = chosen(given.works, list(WORKS), "work")
    contenders = [each for each in CONTENDERS if each.name in names]
    if given.page or not (given.only or given.works):
        try_the_page(contenders, given.patience)
    if given.page:
        return
    figures = measure(contenders, [work for work in WORKS if work in works], given.rounds, given.patience)
    if not (given.only or given.works):
        write(figures)
    print(table.whole(figures))


if __name__ == "__main__":
    main()

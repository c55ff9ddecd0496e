"""Run all contenders on all tasks, and update the table, the chart and the README: `make bench-peers`.

PYTHONPATH=bench python -m peers.run                                    measures everything and updates the files
PYTHONPATH=bench python -m peers.run --only acorn_native,raw_httpx --works loop10,single --rounds 3    only prints
PYTHONPATH=bench python -m peers.run --page                             runs the programs of docs/why.md

Each round starts one process for each contender. All contenders finish a task before the next task starts, so that
noise affects all contenders equally. The process repeats a task for one second. The result is the median of the medians
of all rounds.
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
"""The contenders on the comparison page `docs/why.md`."""
ON_PAGE = "page3"
Cell = dict[str, Any]


class StuckError(Exception):
    """Raised if the process of a contender does not answer in time, or has ended."""


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
    """The process of one contender, which receives task names and returns measurements."""

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

    def read(self, patience: float) -> dict[str, Any]:
        """Return the next JSON line of the process, or raise `StuckError` after `patience` seconds."""
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
        return self.read(patience)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()


def without_paths(words: str) -> str:
    """Convert an error message to one short line for a table, without file paths and addresses."""
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
        """A dict that maps tasks without results to the reason."""

    def begin(self, root: str, works: list[str], patience: float) -> None:
        """Start the process of the contender, and store the cost of its import."""
        self.end()
        self.process = Process(self.contender, self.python, root)
        try:
            hello = self.process.read(patience)
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
        """Mark the longer versions of a task as not measured, because the task exceeded the time limit."""
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
                # Always run the task `first`, because it loads modules that the other tasks need.
                for work in [each for each in WORKS if each == "first" or (each in works and each != "import")]:
                    for series in all_series:
                        say(f"round {at + 1} of {rounds}: {work}, {series.contender.title}")
                        series.do(work, root, patience)
        except KeyboardInterrupt:
            say("Interrupted. The report contains the results so far.")
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
    """Run each program of the comparison page unchanged, in the environment of its contender."""
    with serving() as root:
        for contender in (each for each in contenders if each.name in TABS):
            say(f"page: {contender.title}")
            process = Process(contender, python_of(contender), root)
            try:
                process.read(patience)
                take(root)
                told, came = process.do(ON_PAGE, patience), take(root)
            finally:
                process.end()
            wanted = requests_of(ON_PAGE) + told.get("requests_more", 0)
            if "error" in told or came["requests"] != wanted:
                why = told.get("error", f"{came['requests']} requests where {wanted} are needed")
                sys.exit(f"The program of {contender.title} in docs/why.md does not complete its task: {why}")


def parse_names(text: str | None, all_names: list[str], noun: str) -> list[str]:
    names = text.split(",") if text else all_names
    if unknown := [name for name in names if name not in all_names]:
        sys.exit(f"The {noun} `{unknown[0]}` does not exist. Use one of: {', '.join(all_names)}.")
    return names


def write(figures: dict[str, Any]) -> None:
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (ROOT / "docs" / "figures.md").write_text(table.whole(figures), encoding="utf-8")
    (ROOT / "docs" / "bench.svg").write_text(chart.svg(figures), encoding="utf-8")
    for page, part in ((README, table.short(figures)), (PAGE, table.beside(figures, COMPARED))):
        page.write_text(table.into(page.read_text(encoding="utf-8"), part), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="peers.run", description="Compare acorn with other frameworks on the same tasks."
    )
    parser.add_argument("--only", help="contenders, separated by commas; prints the results without updating files")
    parser.add_argument(
        "--works", help=f"tasks, separated by commas: {', '.join(WORKS)}; prints the results without updating files"
    )
    parser.add_argument("--rounds", type=int, default=5, help="the number of rounds")
    parser.add_argument("--patience", type=float, default=120, help="the time limit of a task, in seconds")
    parser.add_argument("--page", action="store_true", help="only run the programs of docs/why.md")
    parser.add_argument("--again", action="store_true", help="update the files from the saved results")
    options = parser.parse_args()
    if options.again:
        write(json.loads(FIGURES.read_text(encoding="utf-8")))
        return
    names = parse_names(options.only, [contender.name for contender in CONTENDERS], "contender")
    works = parse_names(options.works, list(WORKS), "task")
    contenders = [contender for contender in CONTENDERS if contender.name in names]
    if options.page or not (options.only or options.works):
        try_the_page(contenders, options.patience)
    if options.page:
        return
    figures = measure(contenders, [work for work in WORKS if work in works], options.rounds, options.patience)
    if not (options.only or options.works):
        write(figures)
    print(table.whole(figures))


if __name__ == "__main__":
    main()

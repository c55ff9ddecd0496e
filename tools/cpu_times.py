"""Measure the CPU time of the tests: `make cpu-times`, or `python -m pytest -p tools.cpu_times`.

Wall time depends on the load of the machine. This is CPU time, of the test process with all its threads and of every
child process that has ended, summed by folder and by file, with the most expensive tests. The time of a module or
session fixture counts for the test that first needs it. `--cpu-times=FILE` also stores the figures of every test as
JSON, to compare them later.
"""

from __future__ import annotations

import json
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SHOWN = 25
PROPERTY = "cpu"


def spent() -> float:
    """Return the CPU seconds of this process and of its finished children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class CpuTimes:
    """Record the time of each phase of each test; reports carry it from workers to the process that prints."""

    def __init__(self) -> None:
        self.began = spent()
        self.by_test: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self.began = spent()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        now = spent()
        report.user_properties = [*report.user_properties, (PROPERTY, now - self.began)]  # type: ignore[attr-defined]
        self.began = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by_test[report.nodeid] += sum(
            float(str(took)) for name, took in report.user_properties if name == PROPERTY
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        terminalreporter.section("processor time")
        by_file, by_folder = defaultdict[str, float](float), defaultdict[str, float](float)
        tests = defaultdict[str, int](int)
        for test, took in self.by_test.items():
            file = test.partition("::")[0]
            by_file[file] += took
            by_folder[str(Path(file).parent)] += took
            tests[file] += 1
            tests[str(Path(file).parent)] += 1
        for title, took_by in (("folders", by_folder), ("files", by_file), ("tests", self.by_test)):
            terminalreporter.write_line(f"{title}:")
            dearest = sorted(took_by.items(), key=lambda row: -row[1])
            for name, took in dearest if title != "tests" else dearest[:SHOWN]:
                count = f"  {tests[name]:5d} tests" if name in tests else ""
                terminalreporter.write_line(f"{took:9.2f} s{count}  {name}")
        terminalreporter.write_line(f"{sum(self.by_test.values()):9.2f} s  in all")
        kept = config.getoption("--cpu-times")
        if kept:
            Path(kept).write_text(json.dumps(self.by_test, indent=0), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", default="", help="a file for the processor time of every test, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuTimes(), "cpu-times-of-tests")

"""Measure the CPU time of the tests: `make cpu-times`, or `python -m pytest -p tools.cpu_times`.

Wall time depends on the load of the machine, so this plugin measures CPU time. The CPU time of a test includes all
threads of the test process and every child process that has ended. The report lists the sum for each folder and each
file, and the most expensive tests. The time of a module or session fixture counts for the first test that uses the
fixture. `--cpu-times=FILE` also saves the CPU time of every test as JSON, so that you can compare two runs.
"""

from __future__ import annotations

import json
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

LISTED_TESTS = 25
PROPERTY = "cpu"


def cpu_seconds() -> float:
    """Return the CPU seconds that this process and its finished child processes have used."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class CpuTimes:
    """A pytest plugin that measures the CPU time of each test and prints a summary.

    The test reports transfer the times from the xdist workers to the process that prints the summary.
    """

    def __init__(self) -> None:
        self.began = cpu_seconds()
        self.by_test: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self.began = cpu_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        now = cpu_seconds()
        report.user_properties = [*report.user_properties, (PROPERTY, now - self.began)]  # type: ignore[attr-defined]
        self.began = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by_test[report.nodeid] += sum(
            float(str(seconds)) for name, seconds in report.user_properties if name == PROPERTY
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        terminalreporter.section("CPU time")
        by_file, by_folder = defaultdict[str, float](float), defaultdict[str, float](float)
        tests = defaultdict[str, int](int)
        for test, seconds in self.by_test.items():
            file = test.partition("::")[0]
            by_file[file] += seconds
            by_folder[str(Path(file).parent)] += seconds
            tests[file] += 1
            tests[str(Path(file).parent)] += 1
        for title, times in (("folders", by_folder), ("files", by_file), ("tests", self.by_test)):
            terminalreporter.write_line(f"{title}:")
            slowest_first = sorted(times.items(), key=lambda row: -row[1])
            for name, seconds in slowest_first if title != "tests" else slowest_first[:LISTED_TESTS]:
                count = f"  {tests[name]:5d} tests" if name in tests else ""
                terminalreporter.write_line(f"{seconds:9.2f} s{count}  {name}")
        terminalreporter.write_line(f"{sum(self.by_test.values()):9.2f} s  in total")
        path = config.getoption("--cpu-times")
        if path:
            Path(path).write_text(json.dumps(self.by_test, indent=0), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", default="", help="save the CPU time of every test as JSON in this file")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuTimes(), "cpu-times-of-tests")

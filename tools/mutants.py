"""Measure how many random faults in the package the tests detect: `make mutants`.

A *mutant* is the package with one small fault: a comparison, a condition, a constant, a return value or a call is
changed. The tool chooses mutants at random, puts all of them into one copy of the tree, and switches on one at a time:

1. It runs the tests once without a fault and records which tests reach which mutant.
2. For each mutant, it runs the tests that reach it, the fastest first, until one fails. The mutant is then *killed*.
   A run that takes far too long also counts as a kill.

The tests are collected once. Each mutant runs in a fork of that process. The result is a JSON file that names each
mutant, its source line and the test that killed it. `--same FILE` tries the mutants of an earlier result again, so that
two versions of the tests can be compared.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FOLDERS = ("_machine", "_history", "stores", "models")
TESTS = ("tests/unit", "tests/behaviour", "tests/contract", "tests/crash", "tests/cli", "tests/fleet", "tests/web")
BUDGET = 40.0
"""The seconds that the tests of one mutant may take without a fault. Slower tests are left out."""
JOBS = 2
"""The number of mutants that run at the same time."""
GRACE = 60.0
"""The seconds that a mutant may take on top of three times its budget."""
SWITCH = '''"""The switch of the mutants in this copy of the package."""
import os

ACTIVE = int(os.environ.get("ACORN_MUTANT", "0"))
_hits = os.environ.get("ACORN_MUTANT_HITS")
_seen = set()


def _mutant_(number):
    if _hits is not None:
        key = number, os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        if key not in _seen:
            _seen.add(key)
            with open(os.path.join(_hits, str(os.getpid())), "a") as file:
                file.write(f"{number}\\t{key[1]}\\n")
    return number == ACTIVE
'''
OPPOSITES: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass
class Mutant:
    """One fault, with the outcome of its tests."""

    file: str
    function: str
    line: int
    statement: str
    original: str
    replacement: str
    offset: int
    """The position of the changed text in the statement, in bytes."""
    is_deletion: bool = False
    number: int = 0
    tests: list[str] = field(default_factory=list)
    outcome: str = "not reached"
    killed_by: str = ""

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        return self.file, self.function, self.statement, self.offset, self.replacement


class Finder(ast.NodeVisitor):
    """Find the possible mutants of one file: at most one kind for each expression in the body of a function."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.lines = text.encode().splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.data = b"".join(self.lines)
        self.found: list[tuple[Mutant, int, int]] = []
        """The mutants, and the span of bytes that each replaces."""
        self.path: list[str] = []
        self.depth = 0
        self.statement: ast.stmt | None = None

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def code(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.path.append(node.name)
        self.depth += 1
        for child in node.body:
            self.visit(child)
        self.depth -= 1
        self.path.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.path.append(node.name)
        for child in node.body:
            self.visit(child)
        self.path.pop()

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr | ast.match_case | ast.arguments):
            return
        if isinstance(node, ast.stmt):
            self.statement = node
        if self.depth and isinstance(node, ast.expr | ast.stmt):
            self.mutate(node)
        for name, value in ast.iter_fields(node):
            if name == "annotation":
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)
                    if isinstance(child, ast.stmt):
                        self.statement = None

    def mutate(self, node: ast.expr | ast.stmt) -> None:
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                self.add(node, f"({self.code(left)}) {OPPOSITES[type(operator)]} ({self.code(right)})")
            case ast.BoolOp(op=operator, values=values):
                word = " or " if isinstance(operator, ast.And) else " and "
                self.add(node, word.join(f"({self.code(value)})" for value in values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.add(node, self.code(operand))
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                self.add(test, f"not ({self.code(test)})")
            case ast.Constant(value=bool(value)):
                self.add(node, str(not value))
            case ast.Constant(value=int(value)):
                self.add(node, str(value + 1))
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                self.add(node, f"({self.code(left)}) - ({self.code(right)})")
            case ast.BinOp(op=ast.Sub(), left=left, right=right):
                self.add(node, f"({self.code(left)}) + ({self.code(right)})")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                self.add(value, "None")
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
                self.add(node, "", is_deletion=True)
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                self.add(node, "", is_deletion=True)
            case _:
                return

    def add(self, node: ast.expr | ast.stmt, replacement: str, *, is_deletion: bool = False) -> None:
        if self.statement is None or any(isinstance(child, ast.NamedExpr) for child in ast.walk(node)):
            return
        start, end = self.span(node)
        first, last = self.span(self.statement)
        body = getattr(self.statement, "body", None)
        if isinstance(body, list):
            last = min(last, self.span(body[0])[0])
        if is_deletion and self.lines[node.lineno - 1][: node.col_offset].strip():
            return
        statement = self.data[first:last].decode().strip()
        original = self.data[start:end].decode()
        where = ".".join(self.path)
        found = Mutant(self.file, where, node.lineno, statement, original, replacement, start - first, is_deletion)
        self.found.append((found, start, end))


def find_mutants(source: Path) -> list[tuple[Mutant, int, int]]:
    """Return all possible mutants of the folders, in a fixed order."""
    found: list[tuple[Mutant, int, int]] = []
    for folder in FOLDERS:
        for path in sorted((source / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "from __future__ import annotations\n" in text:
                finder = Finder(str(path.relative_to(source)), text)
                finder.visit(ast.parse(text))
                found += finder.found
    return found


def choose(found: list[tuple[Mutant, int, int]], count: int, seed: int) -> list[tuple[Mutant, int, int]]:
    """Choose mutants at random, at most one for each statement, so that they do not overlap."""
    order = random.Random(seed).sample(found, len(found))
    chosen: dict[tuple[str, str, str], tuple[Mutant, int, int]] = {}
    for row in order:
        mutant, start, end = row
        overlaps = any(m.file == mutant.file and start < e and s < end for m, s, e in chosen.values())
        if len(chosen) < count and not overlaps:
            chosen.setdefault((mutant.file, mutant.function, mutant.statement), row)
    return list(chosen.values())


def find_again(found: list[tuple[Mutant, int, int]], earlier: Path) -> list[tuple[Mutant, int, int]]:
    """Return the mutants of an earlier result that still exist in the source."""
    by_key = {mutant.key: (mutant, start, end) for mutant, start, end in found}
    rows = []
    for data in json.loads(earlier.read_text(encoding="utf-8"))["mutants"]:
        row = by_key.get(Mutant(**data).key)
        if row is None:
            print(f"not in this source any more: {data['file']}:{data['line']} {data['original']}")
            continue
        row[0].number = data["number"]
        rows.append(row)
    return rows


def instrument(source: Path, rows: list[tuple[Mutant, int, int]]) -> None:
    """Write all mutants into the source files, each with its switch."""
    by_file: dict[str, list[tuple[Mutant, int, int]]] = defaultdict(list)
    for row in rows:
        by_file[row[0].file].append(row)
    for file, changes in by_file.items():
        data = (source / file).read_bytes()
        for mutant, start, end in sorted(changes, key=lambda row: -row[1]):
            switch, old = f"_mutant_({mutant.number})", data[start:end].decode()
            new = (
                f"if not {switch}: {old}"
                if mutant.is_deletion
                else f"(({mutant.replacement}) if {switch} else ({old}))"
            )
            data = data[:start] + new.encode() + data[end:]
        marker = b"from __future__ import annotations\n"
        data = data.replace(marker, marker[:-1] + b"; from acorn_mutants import _mutant_\n", 1)
        compile(data, file, "exec")
        (source / file).write_bytes(data)
    (source.parent / "acorn_mutants.py").write_text(SWITCH, encoding="utf-8")


def copy_tree(tree: Path, copy: Path) -> None:
    """Copy the tracked files of a work tree."""
    shutil.rmtree(copy, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=tree, check=True, capture_output=True
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (tree / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, copy / name)


class Hunt:
    """A pytest plugin that runs the tests of each mutant in a fork of this process."""

    def __init__(self, plan: Path) -> None:
        self.plan = plan
        data = json.loads(plan.read_text(encoding="utf-8"))
        self.mutants = [Mutant(**row) for row in data["mutants"]]
        self.seconds: dict[str, float] = data["seconds"]
        self.passes: dict[str, bool] = {}
        """For each test that decided about a mutant, whether it passes without a fault."""

    def pytest_runtestloop(self, session: Any) -> bool:
        from tests.postgres_server import shared_server

        with shared_server(session.config._tmp_path_factory.getbasetemp() / "postgres"):
            self.hunt(session)
        return True

    def hunt(self, session: Any) -> None:
        """Try each mutant; a few at the same time, because tests also wait."""
        items = {item.nodeid: item for item in session.items}
        waiting, running = list(reversed(self.mutants)), list[tuple[Mutant, Attempt]]()
        while waiting or running:
            while waiting and len(running) < JOBS:
                mutant = waiting.pop()
                tests = [items[test] for test in mutant.tests if test in items and self.passes.get(test, True)]
                limit = 3 * sum(self.seconds.get(test.nodeid, 0.1) for test in tests) + GRACE
                if tests:
                    running.append((mutant, Attempt(session, mutant.number, tests, limit)))
            time.sleep(0.02)
            for mutant, attempt in [*running]:
                outcome = attempt.poll()
                if outcome is None:
                    continue
                running.remove((mutant, attempt))
                if outcome[1] and not self.passes_without_fault(session, items[outcome[1]]):
                    waiting.append(mutant)
                    continue
                mutant.outcome, mutant.killed_by = outcome
                where = f"{mutant.file}:{mutant.line} {mutant.original!r}"
                print(f"{mutant.outcome:9} {where} {mutant.killed_by}", flush=True)
                self.save()
        self.save()

    def passes_without_fault(self, session: Any, item: Any) -> bool:
        """Return whether a test that decided about a mutant passes without a fault."""
        if item.nodeid not in self.passes:
            attempt = Attempt(session, 0, [item], 600)
            while (outcome := attempt.poll()) is None:
                time.sleep(0.02)
            self.passes[item.nodeid] = outcome[0] == "survived"
            if outcome[0] != "survived":
                print(f"does not pass here without a fault: {item.nodeid}", flush=True)
        return self.passes[item.nodeid]

    def save(self) -> None:
        data = {"mutants": [asdict(mutant) for mutant in self.mutants], "seconds": self.seconds}
        self.plan.write_text(json.dumps(data, indent=0), encoding="utf-8")


class Attempt:
    """The tests of one mutant in a fork of this process, until one fails."""

    def __init__(self, session: Any, number: int, items: list[Any], limit: float) -> None:
        handle, path = tempfile.mkstemp()
        self.report = Path(path)
        self.deadline = time.monotonic() + limit
        self.child = os.fork()
        if not self.child:
            os.setsid()
            self.run_tests(session, number, items, handle)
        os.close(handle)

    def poll(self) -> tuple[str, str] | None:
        """Return the outcome and the test that decided it, or None while tests run."""
        done, status = os.waitpid(self.child, os.WNOHANG)
        is_late = time.monotonic() > self.deadline
        if not done and not is_late:
            return None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child, signal.SIGKILL)
        if not done:
            os.waitpid(self.child, 0)
        lines = self.report.read_text(encoding="utf-8").splitlines()
        self.report.unlink()
        if done and status == 0 and lines and lines[-1] == "passed":
            return "survived", ""
        if lines and lines[-1].startswith("failed "):
            return "killed", lines[-1].removeprefix("failed ")
        running = lines[-1].removeprefix("start ") if lines else ""
        return ("crashed" if done else "timeout"), running

    def run_tests(self, session: Any, number: int, items: list[Any], handle: int) -> None:
        vars(sys.modules["acorn_mutants"])["ACTIVE"] = number
        os.environ["ACORN_MUTANT"] = str(number)
        silent = os.open(os.devnull, os.O_RDWR)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as report:
                for at, item in enumerate(items):
                    report.write(f"start {item.nodeid}\n")
                    report.flush()
                    failed: list[bool] = []
                    following = items[at + 1] if at + 1 < len(items) else None
                    watcher = _Watcher(failed)
                    session.config.pluginmanager.register(watcher)
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                    session.config.pluginmanager.unregister(watcher)
                    if failed:
                        report.write(f"failed {item.nodeid}\n")
                        report.flush()
                        os._exit(1)
                report.write("passed\n")
        finally:
            os._exit(0)


class _Watcher:
    def __init__(self, failed: list[bool]) -> None:
        self.failed = failed

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(True)


def pytest_configure(config: Any) -> None:
    plan, times = os.environ.get("ACORN_MUTANT_PLAN"), os.environ.get("ACORN_MUTANT_SECONDS")
    if plan:
        config.pluginmanager.register(Hunt(Path(plan)), "mutant-hunt")
    if times and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Seconds(Path(times)), "mutant-seconds")


class Seconds:
    """A pytest plugin that records the seconds of each test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        passed = {test: seconds for test, seconds in self.seconds.items() if test not in self.failed}
        self.path.write_text(json.dumps(passed), encoding="utf-8")


def read_hits(folder: Path) -> dict[int, set[str]]:
    reached: dict[int, set[str]] = defaultdict(set)
    for path in folder.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines():
            number, _, test = line.partition("\t")
            if test:
                reached[int(number)].add(test)
    return reached


def read_seconds(report: Path) -> dict[str, float]:
    """Return the seconds of each test, by its id."""
    return {name: float(seconds) for name, seconds in json.loads(report.read_text(encoding="utf-8")).items()}


def select(tests: set[str], seconds: dict[str, float]) -> list[str]:
    """Return the tests to run: first one of each function, the fastest first, within the budget."""
    by_speed = sorted((test for test in tests if test in seconds), key=lambda test: (seconds[test], test))
    first = list({test.partition("[")[0]: test for test in reversed(by_speed)}.values())
    first.sort(key=lambda test: (seconds[test], test))
    rest = [test for test in by_speed if test not in set(first)]
    return list(within_budget([*first, *rest], seconds))


def within_budget(tests: list[str], seconds: dict[str, float]) -> Iterator[str]:
    left = BUDGET
    for test in tests:
        left -= seconds[test] + 0.005
        if left > 0:
            yield test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", default=".", help="the work tree to measure")
    parser.add_argument("--count", type=int, default=200, help="the number of mutants")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the choice")
    parser.add_argument("--same", help="an earlier result; try its mutants again")
    parser.add_argument("--result", default=".bench/mutants.json", help="the file of the result")
    parser.add_argument("--resume", action="store_true", help="use the first run of the last attempt")
    parser.add_argument("--workers", default="4", help="the worker processes of the first run")
    options = parser.parse_args()
    here, result = Path.cwd(), Path(options.result).resolve()
    copy = result.with_suffix(".tree")
    copy_tree(Path(options.tree).resolve(), copy)
    source = copy / "src" / "acorn"
    found = find_mutants(source)
    print(f"{len(found)} possible mutants")
    if options.same:
        rows = find_again(found, Path(options.same))
    else:
        rows = choose(found, options.count, options.seed)
        for number, row in enumerate(rows, 1):
            row[0].number = number
    instrument(source, rows)
    hits, times = result.with_suffix(".hits"), result.with_suffix(".seconds")
    folders = [folder for folder in TESTS if (copy / folder).exists()]
    env = {**os.environ, "PYTHONPATH": f"{copy / 'src'}:{here}"}
    python = str(here / ".venv" / "bin" / "python")
    test = [python, "-m", "pytest", "-p", "tools.mutants", "--ignore=tests/web/browser", *folders]
    first = [*test, "-n", options.workers, "--dist", "worksteal"]
    record = {"ACORN_MUTANT_HITS": str(hits), "ACORN_MUTANT_SECONDS": str(times)}
    if not options.resume:
        shutil.rmtree(hits, ignore_errors=True)
        hits.mkdir(parents=True)
        subprocess.run(first, cwd=copy, env={**env, **record}, check=False)
    reached, seconds = read_hits(hits), read_seconds(times)
    for mutant, _, _ in rows:
        mutant.tests = select(reached[mutant.number], seconds)
    plan = {"mutants": [asdict(row[0]) for row in rows], "seconds": seconds}
    result.write_text(json.dumps(plan, indent=0), encoding="utf-8")
    started = time.monotonic()
    subprocess.run(
        [*test, "-s", "-p", "no:cacheprovider"], cwd=copy, env={**env, "ACORN_MUTANT_PLAN": str(result)}, check=False
    )
    outcomes: dict[str, int] = defaultdict(int)
    for row in json.loads(result.read_text(encoding="utf-8"))["mutants"]:
        outcomes[row["outcome"]] += 1
    print(f"{dict(outcomes)} in {time.monotonic() - started:.0f} s; see {result}")


if __name__ == "__main__":
    main()

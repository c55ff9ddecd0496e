"""The tests, side by side: `python -m tools.side_by_side [PATH ...] [OPTION ...]`, as `make test` does it.

There are two processes of pytest for each core, as much of the time is waiting; `--processes=N` says otherwise. Each
takes the next file that nobody has taken, finds its tests and runs them. So a file is read once, and what its tests
share, they share in one process. Lines of dots are shown as they come, all else when a process has ended.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

DEAR = ("test_clone.py", "test_local.py", "test_wire_streaming.py", "test_retries.py", "test_streaming.py")
"""Files that take long. They begin first, so that no process is left with one of them when the others are done."""
_FILES = "files"
_DOTS = re.compile(r"[.FEsxX]+( +\[.*\])?\s*")
_OUTCOME = re.compile(r"(\d+) (\w+)")
_PATIENCE = 30.0
"""Seconds for the last words of a process that has ended; one that it left behind may hold them open."""
_FINE = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


# Within a process of pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turns", type=Path, help="the folder in which processes take their files")


def pytest_collection() -> bool:
    """Nothing is looked for at first."""
    return True


def pytest_runtestloop(session: pytest.Session) -> bool:
    tests = _tests(session)
    test = next(tests, None)
    while test is not None:
        following = next(tests, None)  # what it needs of the same fixtures stays
        session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        test = following
    return True


def _tests(session: pytest.Session) -> Iterator[pytest.Item]:
    found = 0
    for file in _taken(session.config.getoption("turns")):
        gc.disable()  # what is found stays until the file is done
        tests = session.perform_collect([file])
        gc.enable()
        found += len(tests)
        session.testscollected = found
        yield from tests


def _taken(folder: Path) -> Iterator[str]:
    for number, file in enumerate((folder / _FILES).read_text(encoding="utf-8").splitlines()):
        try:
            (folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield file


# Around them


class _Process:
    """One pytest, and what it has said so far."""

    def __init__(self, words: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="backslashreplace",
        )
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if _DOTS.fullmatch(line):
                print(line, end="", flush=True)
            else:
                self.said.append(line)

    def ended(self) -> int:
        """Its exit code, once it has ended; Ctrl-C reaches it too, and it says how far it came."""
        try:
            code = self._process.wait()
        except KeyboardInterrupt:
            code = self._process.wait()
        self._reader.join(_PATIENCE)
        return code

    def outcomes(self) -> Counter[str]:
        last = self.said[-1] if self.said else ""
        return Counter({outcome: int(count) for count, outcome in _OUTCOME.findall(last.partition(" in ")[0])})


def _files(paths: Sequence[str]) -> list[str]:
    files = [
        str(file)
        for path in paths
        for file in (sorted(Path(path).rglob("test_*.py")) if Path(path).is_dir() else [path])
    ]
    order = {name: at for at, name in enumerate(DEAR)}
    return sorted(dict.fromkeys(files), key=lambda file: order.get(Path(file).name, len(order)))


def main(words: Sequence[str]) -> int:
    count = [word.partition("=")[2] for word in words if word.startswith("--processes=")]
    options = [word for word in words if word.startswith("-") and not word.startswith("--processes=")]
    paths = [word for word in words if not word.startswith("-")] or ["tests"]
    # Whoever minds the PostgreSQL there may be the last to leave.
    with tempfile.TemporaryDirectory(prefix="acorn-tests-", ignore_cleanup_errors=True) as folder:
        Path(folder, _FILES).write_text("\n".join(_files(paths)), encoding="utf-8")
        own = ["-p", "tools.side_by_side", f"--turns={folder}", "-o", "console_output_style=count", *options, *paths]
        processes = [_Process(own) for _ in range(int(count[-1]) if count else 2 * (os.cpu_count() or 1))]
        codes = [process.ended() for process in processes]
    for process in processes:
        print(*process.said, sep="")
    outcomes = sum((process.outcomes() for process in processes), Counter[str]())
    print(", ".join(f"{many} {outcome}" for outcome, many in sorted(outcomes.items())) or "no tests")
    bad = [code for code in codes if code not in _FINE]
    if bad:
        print(f"exit codes of the processes: {', '.join(map(str, codes))}")
    return bad[0] if bad else int(_FINE[0] if outcomes["passed"] else _FINE[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

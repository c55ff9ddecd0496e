"""A fleet of workers in separate processes, and their logs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.waiting import PATIENCE, comes_true

AGENTS = Path(__file__).with_name("worker_agents.py")
SOURCE = Path(__file__).parents[2] / "src"
LEASE = 3.0


class Line(NamedTuple):
    pid: int
    what: str
    key: str
    is_again: bool


class Worker:
    """A process that runs `acorn work`."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process, self.output = process, output

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return self.output.read_text()

    def send(self, name: signal.Signals) -> None:
        self.process.send_signal(name)

    def ends(self) -> int:
        return self.process.wait(PATIENCE)


class Fleet:
    def __init__(self, store: str, folder: Path, **environment: str) -> None:
        self.store, self.folder, self.log = store, folder, folder / "effects.log"
        self.log.touch()
        path = os.pathsep.join([str(SOURCE), *sys.path])
        own = {"PYTHONPATH": path, "CREW_LOG": str(self.log), "CREW_STORE": store, "ACORN_LEASE": str(LEASE)}
        self._environment = {**os.environ, **own, **environment}
        self.workers: list[Worker] = []

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.send(signal.SIGCONT)
                worker.process.kill()
            worker.process.wait()
        if error is not None:
            error.add_note("\n".join(f"worker {each.pid}:\n{each.said()[-2000:]}" for each in self.workers))

    def start(self, *targets: str, file: Path = AGENTS, concurrency: int = 4, options: tuple[str, ...] = ()) -> Worker:
        output = self.folder / f"worker-{len(self.workers)}.log"
        named = [f"{file}:{target}" for target in targets]
        command = [
            sys.executable, "-m", "acorn", "work", *named, "--store", self.store, "--concurrency", str(concurrency),
            *options,
        ]  # fmt: skip
        with output.open("wb") as stream:
            process = subprocess.Popen(
                command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, env=self._environment, cwd=self.folder
            )
        worker = Worker(process, output)
        self.workers.append(worker)
        assert comes_true(lambda: "working on" in worker.said() or process.poll() is not None)
        return worker

    def lines(self) -> list[Line]:
        split = [line.split(" ") for line in self.log.read_text().splitlines()]
        return [Line(int(pid), what, key, "AGAIN" in rest) for pid, what, key, *rest in split]

    def repeated(self) -> list[Line]:
        """Return the effects that started although they were committed."""
        return [line for line in self.lines() if line.is_again]

    def begun(self, what: str) -> Counter[str]:
        return Counter(line.key for line in self.lines() if line.what == what)

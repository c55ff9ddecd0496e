"""Functions that measure CPU time and memory, and the lines of the benchmark report."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass
class Line:
    """One line of the benchmark report: a measured value and its optional upper limit."""

    name: str
    value: float
    limit: float | None
    unit: str = "x"

    @property
    def holds(self) -> bool:
        return self.limit is None or self.value <= self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"  (at most {self.limit:g}{self.unit})"
        return f"  {'ok  ' if self.holds else 'OVER'} {self.name:<66}{self.value:9.3f}{self.unit}{limit}"


def cpu(act: Callable[[], object], *, repeat: int = 5, number: int = 1) -> float:
    """Return the CPU seconds of one call, as the minimum of several rounds."""
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        for _ in range(number):
            act()
        best = min(best, (time.process_time() - start) / number)
    return best


def in_turn(acts: dict[str, Callable[[], object]], *, repeat: int = 7) -> dict[str, float]:
    """Return a dict that maps names to the median CPU seconds of functions.

    Each round calls every function once, so that noise affects all functions equally.
    """
    times: dict[str, list[float]] = {name: [] for name in acts}
    for round_ in range(repeat + 1):
        for name, act in acts.items():
            start = time.process_time()
            act()
            if round_:  # The first round opens connections and fills caches, so it does not count.
                times[name].append(time.process_time() - start)
    return {name: median(seconds) for name, seconds in times.items()}


def cpu_of_scripts(scripts: dict[str, str], *, repeat: int = 9) -> dict[str, float]:
    """Return a dict that maps names to the CPU seconds of complete Python processes.

    Each round runs every script once, so that noise affects all scripts equally.
    """
    with tempfile.TemporaryDirectory() as folder:
        files: dict[str, Path] = {}
        for name, text in scripts.items():
            files[name] = Path(folder) / f"{name}.py"
            files[name].write_text(text)
        best = dict.fromkeys(scripts, float("inf"))
        for round_ in range(repeat + 1):
            for name, file in files.items():
                before = os.times()
                subprocess.run([sys.executable, str(file)], check=True)
                after = os.times()
                spent = after.children_user + after.children_system - before.children_user - before.children_system
                if round_:  # The first round fills the disk cache, so it does not count.
                    best[name] = min(best[name], spent)
    return best


def precise_cpu_of_scripts(scripts: dict[str, str], *, repeat: int = 9) -> dict[str, float]:
    """Return a dict that maps names to CPU seconds, from the start of Python to the end of the script.

    Each process measures its own time. Python may write bytecode files, because installed packages have them as well.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    best = dict.fromkeys(scripts, float("inf"))
    for round_ in range(repeat + 1):
        for name, text in scripts.items():
            source = f"{text}\nimport time\nprint(time.process_time())"
            command = [sys.executable, "-c", source]
            out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
            if round_:
                best[name] = min(best[name], float(out.split()[-1]))
    return best


_PEAK = """
from pathlib import Path
status = Path("/proc/self/status")
if status.exists():
    # `getrusage` would also count the memory that the parent process used before it started Python.
    print(int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024)
else:
    import resource
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 ** 2)
"""


def peak_of_script(text: str) -> float:
    """Return the peak memory of a Python process that runs a script, in megabytes."""
    out = subprocess.run([sys.executable, "-c", text + _PEAK], check=True, capture_output=True, text=True).stdout
    return float(out.split()[-1])

"""Measure CPU time: the best of several rounds, always next to a baseline from the same run."""

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
    """A claim: a measured figure and its upper bound."""

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
    """Return the CPU seconds of one call: the best of several rounds."""
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        for _ in range(number):
            act()
        best = min(best, (time.process_time() - start) / number)
    return best


def in_turn(acts: dict[str, Callable[[], object]], *, repeat: int = 7) -> dict[str, float]:
    """Return the median CPU seconds of several functions, interleaved so that noise affects all alike."""
    found: dict[str, list[float]] = {name: [] for name in acts}
    for round_ in range(repeat + 1):
        for name, act in acts.items():
            start = time.process_time()
            act()
            if round_:  # The first call opens connections and fills caches.
                found[name].append(time.process_time() - start)
    return {name: median(each) for name, each in found.items()}


def cpu_of_scripts(scripts: dict[str, str], *, repeat: int = 9) -> dict[str, float]:
    """Return the CPU seconds of whole Python processes, interleaved so that noise affects all alike."""
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
                if round_:  # The first round fills the disk cache.
                    best[name] = min(best[name], spent)
    return best


def precise_cpu_of_scripts(scripts: dict[str, str], *, repeat: int = 9) -> dict[str, float]:
    """Return the CPU seconds that each process counts itself, from its start to the end of the script.

    Installed packages have their bytecode, so it is written here too.
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
    # Not `getrusage`, which counts what the process was before it began to be Python.
    print(int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024)
else:
    import resource
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 ** 2)
"""


def peak_of_script(text: str) -> float:
    """Return the peak megabytes of a whole Python process."""
    out = subprocess.run([sys.executable, "-c", text + _PEAK], check=True, capture_output=True, text=True).stdout
    return float(out.split()[-1])

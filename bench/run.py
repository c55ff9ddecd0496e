"""Run the benchmarks, which check every speed claim of the project on this machine: `make bench`.

python bench/run.py              runs all benchmarks
python bench/run.py foundation   runs one benchmark
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

BENCHES = [
    "foundation",
    "loop",
    "streaming",
    "branches",
    "lanes",
    "lane_streams",
    "at_once",
    "scale",
    "providers",
    "thread",
    "stores",
    "media",
    "postgres",
    "fleet",
    "telemetry",
    "mcp_calls",
    "web",
    "serve",
]


def main(names: list[str]) -> int:
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    over = 0
    for name in names or BENCHES:
        bench = importlib.import_module(name)
        print(f"{name}: {(bench.__doc__ or '').strip().splitlines()[0]}")
        for line in bench.lines():
            print(line, flush=True)
            over += not line.holds
    if over:
        print(f"{over} measurements are over their limits.")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Draw the chart of the README, `docs/bench.svg`, with one dot for each contender and task.

The scale is logarithmic. The line from raw httpx to a dot shows the ratio of the CPU times. The colors follow the light
or dark theme of the reader's browser.
"""

from __future__ import annotations

import math
from typing import Any
from xml.sax.saxutils import escape

from peers.table import FLOOR, NO_PARTIALS, number, ratio
from peers.tasks import WORKS

PANELS = ["single", "loop50", "stream100", "many200"]
LEFT, PANEL, GAP, ROW, TOP, BOTTOM = 176, 176, 24, 24, 72, 40
STYLE = """\
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .head { font-weight: 600; } .ours { font-weight: 600; fill: #8a4b08; } .dim { fill: #59636e; font-size: 11px; }
  .value { font-size: 11px; } .band { fill: #f6f8fa; } .one { stroke: #59636e; } .tick { stroke: #d1d9e0; }
  .rod { stroke: #8c959f; stroke-width: 2; } .dot { fill: #59636e; }
  .rod.mine { stroke: #bf6a02; } .dot.mine { fill: #bf6a02; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .ours { fill: #f0a04b; } .dim { fill: #9198a1; } .band { fill: #161b22; }
    .one { stroke: #9198a1; } .tick { stroke: #3d444d; } .rod { stroke: #6e7681; } .dot { fill: #9198a1; }
    .rod.mine { stroke: #f0a04b; } .dot.mine { fill: #f0a04b; }
  }"""


def scale_limits(figures: dict[str, Any]) -> tuple[int, int]:
    """Return the exponents of the two powers of ten between which all dots are."""
    ratios = [ratio(figures, name, work) for name in figures["contenders"] for work in PANELS]
    exponents = [math.log10(value) for value in ratios if value]
    return math.floor(min([*exponents, -1])), math.ceil(max([*exponents, 1]))


class Scale:
    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def x(self, panel: int, value: float) -> float:
        left = LEFT + panel * (PANEL + GAP)
        # Leave 40 pixels for the number after the last dot.
        return round(left + (math.log10(value) - self.low) / (self.high - self.low) * (PANEL - 40), 1)


def panel_of(figures: dict[str, Any], at: int, scale: Scale, bottom: int) -> list[str]:
    work = PANELS[at]
    lines = [f'<text class="head" x="{scale.x(at, 10.0**scale.low)}" y="46">{escape(WORKS[work])}</text>']
    for power in range(scale.low, scale.high + 1):
        x = scale.x(at, 10.0**power)
        lines.append(f'<line class="{"tick" if power else "one"}" x1="{x}" y1="{TOP - 14}" x2="{x}" y2="{bottom}"/>')
        lines.append(f'<text class="dim" x="{x}" y="{bottom + 15}" text-anchor="middle">{10.0**power:g}</text>')
    for row, (name, contender) in enumerate(figures["contenders"].items()):
        y = TOP + row * ROW
        value = ratio(figures, name, work)
        mine = " mine" if contender["ours"] else ""
        if value is None:
            reason = str(contender["cells"].get(work, {}).get("none", ""))
            words = reason if reason.startswith("over ") else "-"
            lines.append(f'<text class="dim" x="{scale.x(at, 1) + 8}" y="{y + 4}">{escape(words)}</text>')
            continue
        x = scale.x(at, value)
        lines.append(f'<line class="rod{mine}" x1="{scale.x(at, 1)}" y1="{y}" x2="{x}" y2="{y}"/>')
        lines.append(f'<circle class="dot{mine}" cx="{x}" cy="{y}" r="4.5"/>')
        star = "*" if name in NO_PARTIALS and work.startswith("stream") else ""
        lines.append(f'<text class="value" x="{max(x, scale.x(at, 1)) + 8}" y="{y + 4}">{number(value)}{star}</text>')
    return lines


def describe(figures: dict[str, Any]) -> str:
    """Return a description of the chart for readers who cannot see it."""
    sentences = []
    for name, row in figures["contenders"].items():
        known = [(WORKS[work], ratio(figures, name, work)) for work in PANELS]
        words = ", ".join(f"{title} {number(value)}" for title, value in known if value)
        sentences.append(f"{row['title']}: {words or 'not measured'}.")
    return " ".join(sentences)


def svg(figures: dict[str, Any]) -> str:
    contenders = figures["contenders"]
    scale = Scale(*scale_limits(figures))
    bottom = TOP + len(contenders) * ROW - 8
    width, height = LEFT + len(PANELS) * (PANEL + GAP), bottom + BOTTOM
    title = "CPU time of acorn and others, as ratios to raw httpx"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-labelledby="title about">',
        f'<title id="title">{title}</title>',
        f'<desc id="about">{escape(describe(figures))}</desc>',
        f"<style>\n{STYLE}\n</style>",
        f'<text x="8" y="20"><tspan class="head">CPU time, {escape(contenders[FLOOR]["title"])} = 1</tspan>'
        '<tspan class="dim" dx="10">logarithmic; left is cheaper; * without partial answers</tspan></text>',
    ]
    for row, contender in enumerate(contenders.values()):
        y = TOP + row * ROW
        if row % 2 == 0:
            lines.append(f'<rect class="band" x="0" y="{y - ROW / 2}" width="{width}" height="{ROW}"/>')
        mine = ' class="ours"' if contender["ours"] else ""
        lines.append(f'<text{mine} x="8" y="{y + 4}">{escape(contender["title"])}</text>')
    for at in range(len(PANELS)):
        lines += panel_of(figures, at, scale, bottom)
    return "\n".join([*lines, "</svg>"]) + "\n"

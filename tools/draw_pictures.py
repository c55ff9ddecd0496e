"""Draw the diagrams of the documentation, `docs/assets/loop.svg` and `docs/assets/layers.svg`: `make picture`.

The diagrams consist of boxes and arrows, and their colors follow the light or dark theme of the reader's browser.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

ASSETS = Path(__file__).parents[1] / "docs" / "assets"

STYLE = """\
  text { font: 15px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; text-anchor: middle; }
  .small { font-size: 12.5px; fill: #59636e; } .name { font-weight: 600; } .left { text-anchor: start; }
  .box { fill: #f6f8fa; stroke: #8c959f; stroke-width: 1.5; }
  .box.yours { fill: #fdf3e4; stroke: #bf6a02; } .box.end { fill: #eaf5ea; stroke: #4a8b4a; }
  .arrow { fill: none; stroke: #59636e; stroke-width: 1.75; } .head { fill: #59636e; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #a5aeb8; } .box { fill: #1c222a; stroke: #6e7681; }
    .box.yours { fill: #33240f; stroke: #f0a04b; } .box.end { fill: #17291a; stroke: #6fbf73; }
    .arrow { stroke: #9198a1; } .head { fill: #9198a1; }
  }"""


class Picture:
    """An SVG image to which the methods add boxes, texts and arrows."""

    def __init__(self, width: int, height: int, title: str, words: str) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'aria-labelledby="title about">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="about">{escape(words)}</desc>',
            f"<style>\n{STYLE}\n</style>",
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path class="head" d="M0 0 10 5 0 10z"/></marker></defs>',
        ]

    def box(self, x: int, y: int, width: int, height: int, name: str, below: str = "", kind: str = "") -> None:
        self._lines.append(
            f'<rect class="{f"box {kind}".strip()}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        )
        middle = y + height // 2
        self.text(x + width // 2, middle + (5 if not below else -3), name, "name")
        if below:
            self.text(x + width // 2, middle + 16, below, "small")

    def text(self, x: int, y: int, words: str, kind: str = "") -> None:
        self._lines.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(words)}</text>')

    def arrow(self, path: str) -> None:
        self._lines.append(f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>')

    def svg(self) -> str:
        return "\n".join([*self._lines, "</svg>"]) + "\n"


def loop() -> str:
    """Return the SVG diagram of the agent loop."""
    picture = Picture(
        880,
        330,
        "The loop of a run",
        "acorn sends the prompt and the input to the model. The tools and branches that it calls run concurrently, and "
        "on_step sees their results; then acorn sends the next request. acorn checks the arguments of __finish__: "
        "valid ones are the output, others go back with the errors. After max_steps, it forces __finish__.",
    )
    picture.box(16, 40, 150, 64, "prompt, input", "docstring, XML")
    picture.box(250, 40, 150, 64, "model", "tools, __finish__")
    picture.box(520, 40, 150, 64, "check", "final_output, on_finish")
    picture.box(734, 40, 130, 64, "output", "typed", "end")
    picture.box(250, 232, 150, 64, "tools, branches", "concurrent", "yours")
    picture.box(16, 232, 150, 64, "on_step", "sees, changes", "yours")
    picture.arrow("M166 72H248")
    picture.arrow("M400 62H518")
    picture.text(459, 52, "__finish__", "small")
    picture.arrow("M670 72H732")
    picture.text(701, 62, "valid", "small")
    picture.arrow("M560 104V136H370V106")
    picture.text(465, 154, "not valid: the errors go back", "small")
    picture.arrow("M325 104V230")
    picture.text(334, 186, "calls", "small left")
    picture.arrow("M250 264H168")
    picture.arrow("M91 232V176H280V106")
    picture.text(186, 168, "results: the next step", "small")
    picture.text(440, 250, "After max_steps, or near a limit, one more request", "small left")
    picture.text(440, 268, "forces __finish__: the forced finish.", "small left")
    picture.text(440, 286, "Brown boxes are your code.", "small left")
    return picture.svg()


LAYERS = [
    ("surfaces", "command line, page, services, workers, MCP: only public modules and _inside"),
    ("calls", "the class module; plan, start, batches, submitted runs"),
    ("drivers", "perform the asks of the machine, sync and async; commit to a store"),
    ("adapters", "one outside system each: providers, databases, telemetry"),
    ("machine", "the loop and the history: pure, without input, output or clock"),
    ("declaration", "settings, tools, type arguments; a class compiled into a spec"),
    ("ports, records", "run, journal, thread; the interfaces for models and stores"),
    ("formats", "JSON, XML, schemas, partial answers, redaction"),
    ("base", "errors, plain types, logger"),
]


def layers() -> str:
    """Return the SVG diagram of the code layers."""
    height = 46
    picture = Picture(
        880,
        70 + height * len(LAYERS),
        "The layers of the code",
        "The layers of the code, highest first; imports point down only: "
        + "; ".join(f"{name}: {what}" for name, what in LAYERS),
    )
    for row, (name, what) in enumerate(LAYERS):
        y = 50 + row * height
        picture.box(60, y, 190, height - 6, name, kind="yours" if name == "machine" else "")
        picture.text(270, y + 25, what, "left")
    picture.arrow(f"M30 56V{50 + height * len(LAYERS) - 8}")
    picture.text(16, 34, "Imports point down only.", "small left")
    return picture.svg()


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else ASSETS
    for draw in (loop, layers):
        (folder / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")

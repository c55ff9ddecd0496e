"""Generate `docs/live.svg`, the image of the live view in the README: `make picture`.

The program runs an agent with a scripted model in the live view of `acorn run`, and saves an image of the view while
the answer is incomplete.
"""

from __future__ import annotations

import sys
import time
from io import StringIO
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.terminal_theme import MONOKAI

from acorn import listen, module, tool
from acorn._inside.run_tree import RunTree
from acorn.cli.views import LiveView
from acorn.testing import Reply, ScriptedModel, call, finish

# The default template of rich loads a font from another site. This template uses any installed monospaced font.
TEMPLATE = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; white-space: pre; }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Question(BaseModel):
    question: str


class Answer(BaseModel):
    answer: str
    year: int
    sources: list[str]


@tool
def search(query: str, limit: int = 3) -> list[str]:
    """Search the encyclopedia."""
    time.sleep(0.4)
    return ["Guido van Rossum made Python.", "Python 0.9.0 came in 1991."][:limit]


class Verdict(BaseModel):
    is_true: bool
    evidence: str


class FactCheck(module[None, Verdict]):
    """Verify the claims made so far."""

    max_steps = 3


class Researcher(module[Question, Answer]):
    """Answer the question with the help of your tools."""

    max_steps = 5
    tools = [search]
    branches = {"fact_check": FactCheck}


REPLIES = [
    Reply("Let me look that up.") & call("search", query="Python, creator", limit="many"),
    Reply("The limit has to be a number.") & call("search", query="Python, creator", limit="2"),
    call("fact_check"),
    call("search", query="Python 0.9.0"),
    finish(is_true=True, evidence="The first release, 0.9.0, was posted in February 1991."),
    finish(answer="Guido van Rossum began it in 1989 and released it in 1991.", year=1991, sources=["Python 0.9.0"]),
]


def picture() -> str:
    """Return the live view as SVG text, at a moment when half of the answer has arrived."""
    console = Console(file=StringIO(), record=True, width=92, height=40, force_terminal=True, color_system="truecolor")
    view = LiveView("Researcher", "scripted", console, RunTree(), hides_answer=False)
    agent = Researcher(model=ScriptedModel(REPLIES, chunk_size=6))
    with listen(view.add_entry):
        for chunk in agent.stream(question="Who made Python, and when?"):
            view.add_chunk(chunk)
            partial = chunk.partial if chunk.branch is None else None
            if partial and len(partial.answer or "") > 30:
                break
    console.print(view)
    return console.export_svg(title="acorn run", theme=MONOKAI, code_format=TEMPLATE, unique_id="acorn")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1] / "docs" / "live.svg"
    target.write_text(picture(), encoding="utf-8")

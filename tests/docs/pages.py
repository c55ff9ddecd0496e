"""Run the pages of the documentation as written.

The Python blocks of a page are one program, run in order in an empty folder. Requests to a provider's model go to a
server on loopback that speaks the provider's protocol. Its replies are on the page, hidden from readers:

    <!-- replies
    call("search", query="Python")
    finish(answer="Guido van Rossum")
    -->

Each such comment is for the following blocks, up to the next comment. Before the first one, the server answers like
`AnyModel`: it calls each tool once and finishes with fitting values. Code that a page needs and a reader does not is in
a comment that starts with `<!-- run`.

A `text` block directly after a Python block is the output of that block; `...` in it matches anything. A block with
`title="agent.py"` is also a file of that name. In a `console` block, each line that starts with `$ ` is a command, and
the lines below it are its output. A block that starts with a comment `# not run: why` is only compiled. A page that
needs more is run by another test and says so in a comment `<!-- run by tests/contract/test_fleet.py -->`.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.loopback import Answer, Fault, Loopback, Request
from tests.telemetry import no_provider
from tests.waiting import PATIENCE

from acorn.models import ModelRequest
from acorn.testing import AnyModel, Reply, call, finish

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_PIECE = re.compile(
    r"^<!-- (?P<kind>replies|run)\n(?P<hidden>.*?)^-->$"
    r'|^(?P<indent> *)```(?P<language>\w*)(?: title="(?P<title>[^"\n]+)")?[^\n]*\n'
    r"(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_ELSEWHERE = re.compile(r"^<!-- run by (\S+) -->$", re.MULTILINE)


def pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def run_elsewhere(page: Path) -> str | None:
    """Return the test that runs a page instead of this runner."""
    found = _ELSEWHERE.search(page.read_text(encoding="utf-8"))
    return found[1] if found else None


@dataclass
class Block:
    """Code and its expected output."""

    code: str
    line: int
    prints: str | None = None
    replies: str | None = None
    """What the server answers from here on."""
    file: str | None = None
    """The name that a reader keeps it under."""
    is_console: bool = False
    """Whether it is commands, and what they print."""
    is_run: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_run = not self.code.startswith("# not run: ")


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    blocks: list[Block] = []
    replies: str | None = None
    end = -1
    for piece in _PIECE.finditer(text):
        if piece["kind"] == "replies":
            replies = piece["hidden"]
        elif piece["kind"] == "run" or piece["language"] == "python":
            part = "hidden" if piece["kind"] else "code"
            line = text.count("\n", 0, piece.start(part)) + 1
            code = re.sub(f"^{piece['indent'] or ''}", "", piece[part], flags=re.MULTILINE)
            blocks.append(Block(code, line, replies=replies))
            blocks[-1].file = piece["title"]
            replies = None
            end = piece.end()
        elif piece["language"] == "console":
            line = text.count("\n", 0, piece.start("code")) + 1
            blocks.append(Block(piece["code"], line, replies=replies, is_console=True))
            replies = None
        elif piece["language"] == "text" and blocks and not text[end : piece.start()].strip():
            blocks[-1].prints = re.sub(f"^{piece['indent']}", "", piece["code"], flags=re.MULTILINE)
    return blocks


class Script:
    """The replies of the loopback server while a page runs."""

    def __init__(self) -> None:
        self._left: list[Answer] | None = None

    def take(self, replies: str) -> None:
        self.check()
        names = {"call": call, "finish": finish, "Reply": Reply, "Fault": Fault}
        lines = [line for line in replies.splitlines() if line.strip() and not line.startswith("#")]
        self._left = [eval(line, names) for line in lines]

    def check(self) -> None:
        assert not self._left, f"the page did not ask for these replies: {self._left}"

    def answer(self, request: Request) -> Answer:
        if self._left is None:
            return any_answer(request)
        if self._left:
            return self._left.pop(0)
        return Fault(status=400, message="the page asks for more replies than it has")


def any_answer(request: Request) -> Reply:
    """Return the reply of `AnyModel` to a request in any protocol."""
    body = request.body
    tools = [each for each in body.get("tools", ()) if "function" in each]
    if len(tools) < len(body.get("tools", ())):  # The form of Anthropic and of Responses.
        tools = [
            {"function": {"name": each["name"], "parameters": each.get("input_schema") or each.get("parameters")}}
            for each in body["tools"]
        ]
    forced = "__finish__" if "tool_choice" in body else None
    messages = body.get("messages") or body.get("input") or []
    response = AnyModel().complete(ModelRequest(messages, tools, 0.0, 1, forced_tool=forced))
    return Reply(response.content, response.tool_calls)


def matches(printed: str, said: str) -> bool:
    pattern = ".*".join(map(re.escape, said.strip("\n").split("...")))
    return re.fullmatch(pattern, printed.strip("\n"), flags=re.DOTALL) is not None


def run_console(session: str, where: str) -> None:
    """Run the commands of a session; each prints what is shown, and succeeds."""
    for typed in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, said = typed.partition("\n")
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, f"{where}: `{command}` failed:\n{done.stderr}"
        printed = done.stderr + done.stdout
        assert matches(printed, said), f"{where}: `{command}` prints\n{printed}\nand the page says\n{said}"


def run_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a page in an empty folder, and return its names."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    script = Script()
    with Loopback(script.answer) as server, no_provider():
        for name, value in (
            ("OPENAI_BASE_URL", f"{server.url}/v1"),
            ("OPENAI_API_KEY", "sk-test"),
            ("ANTHROPIC_BASE_URL", server.url),
            ("ANTHROPIC_API_KEY", "sk-ant-test"),
            # Commands of a page come from this environment.
            ("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"),
        ):
            monkeypatch.setenv(name, value)
        for block in blocks_of(page):
            if block.replies is not None:
                script.take(block.replies)
            where = f"{page.relative_to(ROOT)}:{block.line}"
            if block.is_console:
                run_console(block.code, where)
                continue
            program = compile("\n" * (block.line - 1) + block.code, str(page), "exec", dont_inherit=True)
            if block.file is not None:
                Path(block.file).write_text(block.code, encoding="utf-8")
            if not block.is_run:
                continue
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(program, names)
            if block.prints is not None:
                assert matches(printed.getvalue(), block.prints), (
                    f"{where} prints\n{printed.getvalue()}\nand the page says\n{block.prints}"
                )
        script.check()
    return names

"""Tests of `acorn explain`: it prints the first request and warnings without running the agent."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import AGENTS, Acorn

AGENT = '''
from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from acorn import module, tool


class Question(BaseModel):
    question: str = Field(description="What to find out")


class Answer(BaseModel):
    answer: str
    mark: str = Field(max_length=3, description="A mark")
    parts: list[str] = []


class Base(module[Question, Answer]):
    """Look it up."""

    temperature = 0.25

    @tool
    def search(self, query: str) -> str:
        return Path("called").touch() or query

    def on_start(self, step: Any) -> None:
        Path("started").touch()


class Source:
    def open(self) -> None:
        Path("opened").touch()

    def tools(self) -> list[Any]:
        return [weigh]


def weigh(stone: str) -> int:
    """Weigh a stone."""
    return 1


class Researcher(Base):
    tools = [Source()]


class Quiet(module[str, str]):
    model = "openai/gpt-4o"
    max_steps = 3
    store = "kept.db"

    def system_prompt(self) -> str:
        return "Made \\x1b[31mnow\\x1b[0m."


class Small(Researcher):
    model = [{"model": "openai/gpt-4o", "api_key": "sk-secret-of-mine"}, "local/smollm2"]
    max_steps = 2


class Broken(module[str, str]):
    def system_prompt(self) -> str:
        raise ValueError("no prompt today")
'''


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.delenv("ACORN_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "explained.py").write_text(AGENT, encoding="utf-8")
    return tmp_path / "explained.py"


def test_explain_json_contains_first_request_of_agent(acorn: Acorn, agent: Path) -> None:
    ended = acorn("explain", f"{agent}:Researcher", "--question", "Who & what?", "--json")
    assert ended.code == 0, ended.err
    told: Any = ended.output
    assert told["messages"][0] == {"role": "system", "content": "Look it up."}
    assert "Who &amp; what?" in told["messages"][1]["content"]
    assert [tool["function"]["name"] for tool in told["tools"]] == ["search", "__finish__"]
    assert told["temperature"] == 0.25
    assert [part["name"] for part in told["parts"]] == [
        "system message", "user message", "tool search", "tool __finish__"
    ]  # fmt: skip
    assert told["parts"][0] == {"name": "system message", "characters": 11, "tokens": 2}
    assert told["characters"] == sum(part["characters"] for part in told["parts"])
    assert told["inherits"] == {
        "Base": ["temperature", "search", "on_start", "initial_input", "final_output", "the docstring, as prompt"]
    }
    assert told["input"] == {"question": "Who & what?"}


def test_explain_json_contains_warnings_about_agent_declaration(acorn: Acorn, agent: Path) -> None:
    warnings = "\n".join(acorn("explain", f"{agent}:Researcher", "--question", "x", "--json").output["warnings"])
    for words in (
        "no `model` is set",
        "tools without `max_steps`",
        "the tool `search` has no description",
        "arguments of the tool `search` without a description: `query`",
        "fields of the output without a description: `answer`, `parts`",
        "text without a longest length in the output: `answer`, `parts`",
    ):
        assert words in warnings
    warnings = "\n".join(acorn("explain", f"{agent}:Quiet", "x", "--json").output["warnings"])
    assert "`max_steps` without tools" in warnings
    assert "model" not in warnings
    warnings = "\n".join(acorn("explain", AGENTS / "desk.py:Desk", "x", "--json").output["warnings"])
    assert "the tool `refund` waits for human input" in warnings


def test_explain_warns_of_model_too_small_for_tools(acorn: Acorn, agent: Path) -> None:
    told = acorn("explain", f"{agent}:Small", "--question", "x", "--json").output
    assert told["model"] == "openai/gpt-4o, local/smollm2"
    assert "`local/smollm2` is too small for tools: it may call tools at random for minutes" in told["warnings"]
    shown = acorn("explain", f"{agent}:Small", "--question", "x").out
    assert "on openai/gpt-4o, local/smollm2, temperature 0.25" in shown
    assert "sk-secret" not in shown
    quiet = acorn("explain", f"{agent}:Quiet", "x", "--json").output
    assert not any("too small" in line for line in quiet["warnings"])


def test_run_warns_of_model_too_small_for_tools(
    acorn: Acorn, agent: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACORN_HOME", str(tmp_path / "without weights"))
    ended = acorn("run", f"{agent}:Researcher", "--question", "x", "--model", "local/smollm2")
    assert ended.err.startswith("warning: `local/smollm2` is too small for tools")
    assert "warning" not in acorn("run", f"{agent}:Quiet", "x", "--model", "local/smollm2").err


def test_explain_opens_no_tool_source_and_creates_no_file(acorn: Acorn, agent: Path, tmp_path: Path) -> None:
    ended = acorn("explain", f"{agent}:Researcher", "--question", "x")
    assert ended.code == 0, ended.err
    assert "no tool source was opened; `--open` opens them" in ended.out
    assert "`on_start` was not called" in ended.out
    assert acorn("explain", f"{agent}:Quiet", "x").code == 0
    assert {path.name for path in tmp_path.iterdir()} <= {"explained.py", "__pycache__"}


def test_explain_with_open_option_opens_tool_sources(acorn: Acorn, agent: Path, tmp_path: Path) -> None:
    ended = acorn("explain", "--open", f"{agent}:Researcher", "--question", "x")
    assert "tool weigh" in ended.out
    assert (tmp_path / "opened").exists()


def test_explain_accepts_open_option_after_target(acorn: Acorn, agent: Path) -> None:
    assert "tool weigh" in acorn("explain", f"{agent}:Researcher", "--question", "x", "--open").out
    agent.write_text(AGENT.replace("question: str", "open: bool"), encoding="utf-8")
    told = acorn("explain", f"{agent}:Researcher", "--open", "--json").output
    assert told["input"] == {"open": True}
    assert "weigh" not in str(told["tools"])


def test_explain_without_input_generates_example_input(acorn: Acorn, agent: Path) -> None:
    ended = acorn("explain", f"{agent}:Researcher")
    assert ended.code == 0, ended.err
    assert "The input is an example, because the command has no input." in ended.out


def test_explain_output_contains_no_terminal_codes(acorn: Acorn, agent: Path) -> None:
    ended = acorn("explain", f"{agent}:Quiet", "[bold]x[/bold]")
    assert "Made now." in ended.out
    assert "\x1b" not in ended.out
    assert "[bold]x[/bold]" in ended.out
    assert "tokens (estimate)" in ended.out


def test_explain_output_contains_no_api_key(acorn: Acorn, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-4711-0815-abcdef")
    for form in ((), ("--json",)):
        ended = acorn("explain", f"{agent}:Quiet", "my canary-4711-0815-abcdef", *form)
        assert ended.code == 0
        assert "canary-4711" not in ended.out


def test_explain_error_is_printed_on_stderr_without_traceback(acorn: Acorn, agent: Path) -> None:
    for words, code, told in (
        ([f"{agent}:Researcher", "--questoin", "x"], 2, "--question"),
        ([f"{agent}:Nobody"], 2, "Nobody"),
        ([f"{agent}:Broken", "x"], 1, "no prompt today"),
        ([f"{agent}:Researcher", "--question", "x", "--save", "f"], 2, "There is no option `--save`"),
        ([f"{agent}:Researcher", "--input", "none.json"], 2, "none.json"),
    ):
        ended = acorn("explain", *words)
        assert (ended.code, ended.out) == (code, ""), (words, ended)
        assert told in ended.err
        assert "Traceback" not in ended.err


def test_explain_exits_with_0_for_each_agent_in_agents_folder(acorn: Acorn, agent: Path) -> None:
    for target in ("researcher.py:Researcher", "desk.py:Desk", "desk.py:Curious", "desk.py:Counting", "scout.py"):
        ended = acorn("explain", AGENTS / target, "--json")
        assert ended.code == 0, (target, ended.err)
        assert ended.output["messages"]


SEARCHING = '''
from acorn import module


class Newsroom(module[str, str]):
    """Answer with what is new."""

    model = "openai/responses/gpt-5"
    tools = [{"type": "mcp", "server_label": "shelf", "authorization": "Bearer very-secret-words"}]
    max_steps = 3
'''


def test_explain_prints_hosted_tool_without_its_secret(acorn: Acorn, agent: Path) -> None:
    agent.write_text(SEARCHING, encoding="utf-8")
    for options in ((), ("--json",)):
        done = acorn("explain", str(agent), "x", *options)
        assert "shelf" in done.out, done.err
        assert "very-secret-words" not in done.out + done.err


ASKED_FOR = '''
from acorn import module


class Cool(module[str, str]):
    """Answer."""

    model = [{"model": "openai/gpt-4o", "temperature": 0.1, "max_completion_tokens": 55}, "openai/gpt-4o-mini"]


class Nearer(Cool):
    temperature = 0.9


class Thoughtful(Cool):
    model = {"model": "openai/o3", "reasoning_effort": "high"}
'''


def test_explain_prints_settings_given_in_model_dict(acorn: Acorn, agent: Path) -> None:
    agent.write_text(ASKED_FOR, encoding="utf-8")
    told = [acorn("explain", f"{agent}:{name}", "x", "--json").output for name in ("Cool", "Nearer", "Thoughtful")]
    assert [each["temperature"] for each in told] == [0.1, 0.9, 0.7]
    assert [each["max_tokens"] for each in told] == [55, 55, 4096]
    assert [each["forced_tool"] for each in told] == ["__finish__", "__finish__", None]
    assert "must call" not in acorn("explain", f"{agent}:Thoughtful", "x").out


NESTED = '''
from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, Field

from acorn import module


class Line(BaseModel):
    """A line of the bill."""

    what: str
    price: Decimal = Field(description="Of one")
    parts: list[Line] = Field(default=[], description="What it is made of")


class Bill(BaseModel):
    kind: Literal["bill"]
    total: Decimal = Field(description="All of it")
    day: date = Field(description="When")
    code: str = Field(pattern="^[A-Z]{3}$", description="In letters")
    first: Line
    lines: list[Line] = Field(description="One each")
    notes: dict[str, str] = Field(description="By name")


class Read(module[str, Bill]):
    """Read the bill."""
'''


def test_explain_warns_of_nested_fields_without_description(acorn: Acorn, agent: Path) -> None:
    agent.write_text(NESTED, encoding="utf-8")
    warnings = acorn("explain", str(agent), "x", "--json").output["warnings"]
    assert "fields of the output without a description: `first.what`, `lines.what`" in warnings
    assert "text without a longest length in the output: `first.what`, `lines.what`, `notes`" in warnings

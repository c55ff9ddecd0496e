"""Tests of `acorn show` with a saved run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cases import case
from tests.cli.conftest import AGENTS, Acorn
from tests.cli.screen import Terminal

from acorn import module
from acorn.testing import ScriptedModel, call, finish
from acorn.thread import dump_events, parse_events, serialize_thread_to_xml

MANUAL = AGENTS / "manual.py"


@pytest.fixture
def saved(acorn: Acorn, tmp_path: Path) -> Path:
    file = tmp_path / "run.json"
    assert acorn("run", AGENTS / "researcher.py", "--question", "Who?", "--save", file).code == 0
    return file


def test_show_prints_steps_and_branches(acorn: Acorn, saved: Path) -> None:
    ended = acorn("show", saved)
    assert ended.code == 0
    lines = [line.rstrip() for line in ended.out.splitlines()]
    text = "\n".join(lines)
    assert lines[0].startswith("run.json  ")
    assert "├── system: You are a research assistant." in lines
    assert "├── step 1" in lines
    assert "│   ├── Let me [bold]look[/bold] that up." in lines
    assert '│   ├── ✓ search(query="Python")  0.' in text
    assert '│   │   └── → ["Python: an article","Python: an article"]' in lines
    assert "│   └── ✗ broken()  0." in text
    assert "│       └── → ValueError: x must be positive" in lines
    assert "│   └── ✓ fact_check()  0." in text
    assert "│       ├── step 1" in lines
    assert '│       │   └── ✓ search(query="Guido")  0.' in text
    assert '│           └── completed {"is_true":true,"evidence":["Guido: an article"]}' in lines
    assert '    ├── answer {"answer":"Guido van Rossum","confidence":"very"}' in lines
    assert "did not validate: " in text
    assert lines[-1] == '    └── completed {"answer":"Guido van Rossum","confidence":0.9}'
    assert [line for line in lines if line.endswith(("step 2", "step 3", "└── answer"))] == [
        "├── step 2",
        "│       └── answer",
        "└── answer",
    ]
    assert not set(ended.out) & {"\x1b", "\x07"}


def test_show_prints_saved_record_and_its_events_identically(acorn: Acorn, tmp_path: Path) -> None:
    class Aside(module):
        """You check it."""

        final_output = str

    class Main(module):
        """You answer."""

        final_output = str
        max_steps = 3
        branches = {"aside": Aside}

    model = ScriptedModel([call("aside"), finish(result="true"), finish(result="done")])
    run = Main(model=model).run()
    record, events = tmp_path / "run.json", tmp_path / "events" / "run.json"
    events.parent.mkdir()
    record.write_text(run.to_json())
    events.write_text(json.dumps(dump_events(run.thread)))
    for options in ((), ("--xml",), ("--json",)):
        shown = acorn("show", record, *options)
        assert (shown.code, shown.err) == (0, "")
        assert shown.out == acorn("show", events, *options).out
    assert "└── completed done" in acorn("show", record).out


def test_show_of_run_without_steps_prints_answer_once(acorn: Acorn, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    acorn("run", f"{AGENTS / 'rude.py'}:Checking", "--save", file)
    lines = acorn("show", file).out.splitlines()
    assert [line.rstrip() for line in lines[-2:]] == ["└── answer", "    └── completed fine"]
    assert "step" not in " ".join(lines)


def test_show_prints_final_answer_under_answer_heading_without_step_number(acorn: Acorn, tmp_path: Path) -> None:
    def headings(cls: str) -> list[str]:
        acorn("run", f"{AGENTS / cls}", "--save", tmp_path / "run.json")
        lines = [line.lstrip("│├└─ ").rstrip() for line in acorn("show", tmp_path / "run.json").out.splitlines()]
        return [line for line in lines if line == "answer" or line.startswith("step ")]

    assert headings("rude.py:Forced") == ["step 1", "answer"]
    assert headings("rude.py:Talks") == ["answer"]
    assert headings("rude.py:Wanders") == ["step 1", "step 2", "answer"]
    assert headings("rude.py:Skips") == ["answer"]
    assert headings("ends.py:Invalid") == ["answer"]
    assert headings("ends.py:WrongCalls") == ["step 1", "answer"]


def test_show_prints_thread_xml(acorn: Acorn, saved: Path) -> None:
    assert acorn("show", saved, "--xml").out == serialize_thread_to_xml(parse_events(saved.read_text())) + "\n"


def test_show_prints_events_as_json(acorn: Acorn, saved: Path) -> None:
    assert acorn("show", "--json", saved).output == json.loads(saved.read_text())


def test_show_with_two_format_options_exits_with_2(acorn: Acorn, saved: Path) -> None:
    assert acorn("show", saved, "--xml", "--json").code == 2


def test_show_on_narrow_terminal_wraps_lines(saved: Path) -> None:
    terminal = Terminal(["show", str(saved)], width=40)
    assert terminal.end() == 0
    assert max(map(len, terminal.screen.text.splitlines())) <= 40
    assert terminal.screen.strange == []


def test_show_of_invalid_file_exits_with_2_and_one_line_error(acorn: Acorn, tmp_path: Path) -> None:
    for content, message in [
        (None, "Cannot read `{file}`: No such file or directory"),
        ("", "`{file}` is not a saved run: "),
        ("{}", "`{file}` is not a saved run: Cannot read the saved run: the text has no `format`"),
        ('{"format": 1000000}', "`{file}` is not a saved run: Cannot read the saved run: it has format 1000000"),
        ('[{"type": "message"', "`{file}` is not a saved run: "),
        ('[{"type": "dream"}]', "`{file}` is not a saved run: 0: "),
        ("\x00\x01", "`{file}` is not a saved run: "),
    ]:
        with case(content):
            file = tmp_path / "run.json"
            if content is not None:
                file.write_text(content)
            ended = acorn("show", file)
            assert (ended.code, ended.out) == (2, "")
            assert ended.err.startswith("error: " + message.format(file=file))
            assert ended.err.count("\n") == 1


def test_show_prints_branch_under_tool_call_that_started_it(acorn: Acorn, tmp_path: Path) -> None:
    def event(kind: str, **fields: object) -> dict[str, object]:
        return {"type": kind, "iteration": 1, **fields}

    events = [
        event("tool_call", tool_name="check", tool_call_id="a"),
        event("tool_call", tool_name="check", tool_call_id="b"),
        event("message", role="assistant", content="first", branch="check", run_id="1"),
        event("message", role="assistant", content="second", branch="check", run_id="2"),
        event("message", role="assistant", content="inner", branch="check/deeper", run_id="3"),
        event("tool_result", tool_call_id="a", result="A"),
        event("tool_result", tool_call_id="b", result="B"),
        event("message", role="assistant", content="by a hook", branch="Review", run_id="4"),
        event("human_input_requested", question="May I?"),
        event("human_input_received", response="Yes."),
        event("summary", summary="In short", summarized_iterations=[1]),
        event("error", error="It went wrong"),
    ]
    file = tmp_path / "run.json"
    file.write_text(json.dumps(events))
    lines = [line.rstrip() for line in acorn("show", file).out.splitlines()]
    assert lines[1:] == [
        "└── step 1",
        "    ├── ✓ check()",
        "    │   └── step 1",
        "    │       └── first",
        "    ├── ✓ check()",
        "    │   └── step 1",
        "    │       ├── second",
        "    │       └── branch deeper",
        "    │           └── step 1",
        "    │               └── inner",
        "    ├── branch Review",
        "    │   └── step 1",
        "    │       └── by a hook",
        "    ├── asked for human input: May I?",
        "    ├── received human input: Yes.",
        "    ├── summary of earlier steps: In short",
        "    └── error: It went wrong",
    ]


def outline(out: str) -> list[str]:
    """Return the lines without times and inputs."""
    lines = [re.sub(r"  \d\.\d+ s$", "", line).rstrip() for line in out.splitlines()]
    return [line for line in lines if "put>" not in line and "<topic>" not in line]


@pytest.mark.parametrize("cls", ["Twice", "SideBySide"])
def test_show_prints_branches_started_by_hook_under_step_of_that_hook(acorn: Acorn, tmp_path: Path, cls: str) -> None:
    acorn("run", f"{MANUAL}:{cls}", "--save", tmp_path / "run.json")
    lines = outline(acorn("show", tmp_path / "run.json").out)
    at = lines.index("├── step 1")
    assert lines[at + 1 : at + 4] == ["│   ├── To work.", "│   ├── ✓ work()", "│   │   └── → 7"]
    first = "alpha" if "│   │   │   ├── Reviewing alpha." in lines else "beta"
    second = {"alpha": "beta", "beta": "alpha"}[first]
    assert lines[at + 4 :] == [
        "│   ├── branch Review",
        "│   │   ├── step 1",
        f"│   │   │   ├── Reviewing {first}.",
        f'│   │   │   └── ✓ look(topic="{first}")',
        f"│   │   │       └── → about {first}",
        "│   │   └── answer",
        f'│   │       └── completed {{"topic":"{first}","is_true":true}}',
        "│   └── branch Review#2",
        "│       ├── step 1",
        f"│       │   ├── Reviewing {second}.",
        f'│       │   └── ✓ look(topic="{second}")',
        f"│       │       └── → about {second}",
        "│       └── answer",
        f'│           └── completed {{"topic":"{second}","is_true":true}}',
        "└── answer",
        "    └── completed done",
    ]


def test_show_prints_branch_started_by_tool_after_tool_result(acorn: Acorn, tmp_path: Path) -> None:
    acorn("run", f"{MANUAL}:InTool", "--save", tmp_path / "run.json")
    lines = outline(acorn("show", tmp_path / "run.json").out)
    at = lines.index("│   ├── ✓ work()")
    assert lines[at + 1 : at + 3] == ["│   │   └── → looked into beta", "│   └── branch Review"]


def test_show_prints_error_of_call_to_unknown_tool(acorn: Acorn, tmp_path: Path) -> None:
    acorn("run", f"{AGENTS / 'ends.py'}:WrongCalls", "--save", tmp_path / "run.json")
    out = acorn("show", tmp_path / "run.json").out
    assert '├── ✗ serch(query="x")\n│   │   └── → There is no tool `serch`.' in out
    assert "└── ✗ search(limit=3)\n│       └── → " in out


def test_show_of_interrupted_run_prints_stopped_calls(acorn: Acorn, tmp_path: Path) -> None:
    acorn("run", f"{AGENTS / 'rude.py'}:Cancels", "--save", tmp_path / "run.json")
    lines = acorn("show", tmp_path / "run.json").out.splitlines()
    assert [line.strip() for line in lines[-4:]] == [
        "└── step 1",
        "├── ✗ cancels()",
        "│   └── → This call was not completed: the run was stopped.",
        "└── error: CancelledError",
    ]


@pytest.mark.parametrize("camel", [True, False])
def test_show_accepts_events_in_camel_case_and_snake_case(acorn: Acorn, saved: Path, camel: bool) -> None:
    before = acorn("show", saved).out
    saved.write_text(json.dumps(dump_events(parse_events(saved.read_text()), camel=camel)))
    assert acorn("show", saved).out == before

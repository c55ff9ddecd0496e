"""Tests of `acorn show` with a saved run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cases import case
from tests.cli.conftest import AGENTS, Acorn
from tests.cli.screen import Terminal

from acorn import Run
from acorn.thread import serialize_thread_to_xml

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
    assert "│       ├── → ValueError: x must be positive" in lines
    assert "│       └── Traceback (most recent call last):" in lines
    assert "│   └── ✓ fact_check()  0." in text
    assert "│       ├── step 1" in lines
    assert '│       │   └── ✓ search(query="Guido")  0.' in text
    assert '│           └── completed {"is_true":true,"evidence":["Guido: an article"]}' in lines
    assert '    ├── answer {"answer":"Guido van Rossum","confidence":"very"}' in lines
    assert "did not validate: " in text
    assert lines[-2] == '    └── completed {"answer":"Guido van Rossum","confidence":0.9}'
    assert [line for line in lines if line.endswith(("step 2", "step 3", "└── answer"))] == [
        "├── step 2",
        "│       └── answer",
        "└── answer",
    ]
    assert not set(ended.out) & {"\x1b", "\x07"}


def test_show_of_run_without_steps_prints_answer_once(acorn: Acorn, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    acorn("run", f"{AGENTS / 'rude.py'}:Checking", "--save", file)
    lines = acorn("show", file).out.splitlines()
    assert [line.rstrip() for line in lines[-3:-1]] == ["└── answer", "    └── completed fine"]
    assert "step" not in " ".join(lines[:-1])


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
    run = Run.from_json(saved.read_text(encoding="utf-8"))
    assert acorn("show", saved, "--xml").out == serialize_thread_to_xml(run.thread) + "\n"


def test_show_prints_run_as_json_as_it_was_saved(acorn: Acorn, saved: Path) -> None:
    assert acorn("show", "--json", saved).out == saved.read_text(encoding="utf-8")


def test_show_with_two_format_options_exits_with_2(acorn: Acorn, saved: Path) -> None:
    assert acorn("show", saved, "--xml", "--json").code == 2


def test_show_on_narrow_terminal_wraps_lines(saved: Path) -> None:
    terminal = Terminal(["show", str(saved)], width=40)
    assert terminal.end() == 0
    assert max(map(len, terminal.screen.text.splitlines())) <= 40
    assert terminal.screen.strange == []


def test_show_of_invalid_file_exits_with_2_and_one_line_error(acorn: Acorn, tmp_path: Path) -> None:
    for content, message in [
        (None, "There is no file `{file}`, and there is no store here."),
        ("", "`{file}` is not a saved run: "),
        ("{}", "`{file}` is not a saved run: the text has no `format`"),
        ('{"format": 1000000}', "`{file}` is not a saved run: it has format 1000000"),
        ('[{"type": "message"', "`{file}` is not a saved run: "),
        ('[{"type": "dream"}]', "`{file}` is not a saved run: the text has no `format`"),
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


def outline(out: str) -> list[str]:
    """Return the lines of the tree without times and inputs."""
    lines = [re.sub(r"  \d\.\d+ s$", "", line).rstrip() for line in out.splitlines()[:-1]]
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
        "│   ├── ✓ branch Review",
        "│   │   ├── step 1",
        f"│   │   │   ├── Reviewing {first}.",
        f'│   │   │   └── ✓ look(topic="{first}")',
        f"│   │   │       └── → about {first}",
        "│   │   └── answer",
        f'│   │       └── completed {{"topic":"{first}","is_true":true}}',
        "│   └── ✓ branch Review#2",
        "│       ├── step 1",
        f"│       │   ├── Reviewing {second}.",
        f'│       │   └── ✓ look(topic="{second}")',
        f"│       │       └── → about {second}",
        "│       └── answer",
        f'│           └── completed {{"topic":"{second}","is_true":true}}',
        "└── answer",
        "    └── completed done",
    ]


def test_show_prints_branch_started_by_tool_under_that_tool(acorn: Acorn, tmp_path: Path) -> None:
    acorn("run", f"{MANUAL}:InTool", "--save", tmp_path / "run.json")
    lines = outline(acorn("show", tmp_path / "run.json").out)
    at = lines.index("│   └── ✓ work()")
    assert lines[at + 1] == "│       ├── ✓ branch Review"
    assert "│       └── → looked into beta" in lines


def test_show_prints_error_of_call_to_unknown_tool(acorn: Acorn, tmp_path: Path) -> None:
    acorn("run", f"{AGENTS / 'ends.py'}:WrongCalls", "--save", tmp_path / "run.json")
    out = acorn("show", tmp_path / "run.json").out
    assert '├── ✗ serch(query="x")\n│   │   └── → There is no tool `serch`.' in out
    assert "└── ✗ search(limit=3)\n│       └── → " in out


def test_show_of_interrupted_run_prints_stopped_calls(acorn: Acorn, tmp_path: Path) -> None:
    acorn("run", f"{AGENTS / 'rude.py'}:Cancels", "--save", tmp_path / "run.json")
    lines = acorn("show", tmp_path / "run.json").out.splitlines()
    assert [line.strip() for line in lines[-5:-1]] == [
        "└── step 1",
        "├── ✗ cancels()",
        "│   └── → This call was not completed: the run was stopped.",
        "└── error: CancelledError",
    ]

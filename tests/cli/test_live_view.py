"""Tests of the live view of a run on a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.conftest import AGENTS
from tests.cli.screen import Terminal

from acorn import Run

SLOW, RESEARCHER, ENDS = AGENTS / "slow.py", AGENTS / "researcher.py", AGENTS / "ends.py"
MANUAL = AGENTS / "manual.py"


def test_live_view_prints_text_tools_branch_and_output_as_they_arrive() -> None:
    terminal = Terminal(["run", f"{SLOW}:Watched", "--text", "x"])
    terminal.until(lambda screen: "Let me think" in screen.text and "while." not in screen.text)
    terminal.until(lambda screen: re.search(r'[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] look\(place="the drawer"\)  \d\.\d', screen.text))
    terminal.until(lambda screen: "→ nothing in the drawer" in screen.text)
    terminal.until(lambda screen: re.search(r"check\(\).*\n│?\s+└── name   Inn", screen.text))
    screen = terminal.until(lambda screen: re.search(r"└── name   Augusta [\w ,]*▌", screen.text))
    assert "age    36" not in screen.text
    assert "tokens" in screen.text
    screen = terminal.until(lambda screen: "words" in screen.text and "poetical" in screen.text)
    assert terminal.end() == 0
    lines = screen.text.splitlines()
    assert lines[0] == "Watched on scripted"
    assert lines[1] == "├── Let me think about it for a while."
    assert re.fullmatch(r'├── ✓ look\(place="the drawer"\)  \d\.\d+ s', lines[2])
    assert lines[3] == "│   └── → nothing in the drawer"
    assert re.fullmatch(r"└── ✓ check\(\)  \d\.\d+ s", lines[4])
    assert lines[5:8] == ["    ├── name   Inner", '    ├── words  ["x"]', "    └── age    1"]
    assert re.fullmatch(r"finished: 2 steps · \d+ tokens · \d\.\d+ s", lines[8])
    assert json.loads("\n".join(lines[9:])) == {
        "name": "Augusta Ada King, Countess of Lovelace, born Byron",
        "words": ["poetical", "science"],
        "age": 36,
    }
    assert lines[9] == "{"  # Pretty on a terminal.
    assert screen.strange == []
    assert not screen.is_cursor_hidden
    assert screen.has_colour


def test_live_view_prints_markup_in_model_text_literally() -> None:
    terminal = Terminal(["run", str(RESEARCHER), "--question", "hi"], NO_COLOR="1")
    assert terminal.end() == 0
    screen = terminal.screen
    assert "├── Let me [bold]look[/bold] that up." in screen.text
    assert screen.strange == []
    assert not screen.has_colour
    assert "✗ broken()" in screen.text
    assert "→ ValueError: x must be positive" in screen.text
    assert screen.text.count("the answer did not validate, requested again") == 1
    assert "a tool that prints" in screen.text


def test_live_view_fits_narrow_terminal() -> None:
    terminal = Terminal(["run", f"{SLOW}:Watched", "--text", "x"], width=30, height=6)
    assert terminal.end() == 0
    lines = terminal.screen.text.splitlines()
    assert max(map(len, lines)) <= 30
    assert [line for line in lines if "Watched on" in line] == [lines[0]]
    assert sum("finished" in line for line in lines) == 1
    assert sum("look(" in line for line in lines) == 1
    assert terminal.screen.strange == []


@pytest.mark.usefixtures("ctrl_c")
def test_live_view_interrupted_by_ctrl_c_restores_terminal(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    terminal = Terminal(["run", f"{SLOW}:Stuck", "--text", "x", "--save", str(file)])
    terminal.until(lambda screen: "nothing in the drawer" in screen.text)
    terminal.interrupt()
    assert terminal.end() == 130
    screen = terminal.screen
    assert not screen.is_cursor_hidden
    assert "Traceback" not in screen.text
    assert "interrupted: 1 step" in screen.text
    assert screen.text.count("interrupted") == 1
    assert "tool_result" in [event.type for event in Run.from_json(file.read_text()).thread]


def test_live_view_prints_each_same_named_branch_under_its_tool_call() -> None:
    terminal = Terminal(["run", str(AGENTS / "twins.py")])
    assert terminal.end() == 0
    lines = [re.sub(r"  \d\.\d+ s$", "", line) for line in terminal.screen.text.splitlines()]
    assert [line.lstrip("│├└─ ") for line in lines[1:15]] == [
        line
        for topic in ("alpha", "beta")
        for line in (
            f'✓ check(topic="{topic}")',
            f"Checking {topic}.",
            f'✓ look(topic="{topic}")',
            f"→ about {topic}",
            f'✓ deep(topic="{topic}")',
            f"deep {topic}",
            f"checked {topic}",
        )
    ]
    assert "validate" not in terminal.screen.text


SPIN = "[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]"


def test_live_view_prints_branch_started_by_tool_under_that_tool_call() -> None:
    terminal = Terminal(["run", f"{MANUAL}:InTool"])
    growing = rf"{SPIN} work\(\)  .*\n +└── {SPIN} branch Review  .*\n +├── Reviewing beta\.\n +└── {SPIN} look\("
    terminal.until(lambda screen: re.search(growing, screen.text))
    assert terminal.end() == 0
    lines = [re.sub(r"  \d\.\d+ s$", "", line) for line in terminal.screen.text.splitlines()]
    assert lines[1:10] == [
        "├── To work.",
        "└── ✓ work()",
        "    ├── ✓ branch Review",
        "    │   ├── Reviewing beta.",
        '    │   ├── ✓ look(topic="beta")',
        "    │   │   └── → about beta",
        "    │   ├── topic    beta",
        "    │   └── is_true  true",
        "    └── → looked into beta",
    ]
    assert terminal.screen.strange == []


def test_live_view_prints_branches_started_concurrently_by_hook() -> None:
    terminal = Terminal(["run", f"{MANUAL}:SideBySide"])
    terminal.until(
        lambda screen: (
            re.search(f"{SPIN} branch Review  ", screen.text) and re.search(f"{SPIN} branch Review#2  ", screen.text)
        )
    )
    assert terminal.end() == 0
    text = re.sub(r"  \d\.\d+ s$", "", terminal.screen.text, flags=re.MULTILINE)
    lines = [line.lstrip("│├└─ ") for line in text.splitlines()]
    assert lines[2:5] == ["✓ work()", "→ 7", "✓ branch Review"]
    assert lines[10] == "✓ branch Review#2"
    assert sorted((lines[5], lines[11])) == ["Reviewing alpha.", "Reviewing beta."]
    assert lines.count("is_true  true") == 2


def test_live_view_of_failing_branch_prints_its_error() -> None:
    terminal = Terminal(["run", f"{MANUAL}:Failing"])
    assert terminal.end() == 0
    assert re.search(
        r"└── ✗ branch Broken  .*\n    ├── the answer did not validate\n    └── → ParseError", terminal.screen.text
    )


@pytest.mark.usefixtures("ctrl_c")
def test_live_view_interrupted_during_branch_prints_finished_work(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    terminal = Terminal(["run", f"{MANUAL}:InTool", "--save", str(file)])
    terminal.until(lambda screen: "look(" in screen.text)
    terminal.interrupt()
    assert terminal.end() == 130
    assert terminal.screen.text.splitlines()[1:8] == [
        "├── To work.",
        "└── ✗ work()",
        "    ├── · branch Review",
        "    │   ├── Reviewing beta.",
        '    │   └── ✗ look(topic="beta")',
        "    │       └── → This call was not completed: the run was stopped.",
        "    └── → This call was not completed: the run was stopped.",
    ]
    assert "interrupted: 1 step" in terminal.screen.text
    events = Run.from_json(file.read_text()).thread
    assert [event.type for event in events if event.branch == "Review"][-1] == "error"


def test_live_view_of_invalid_answer_prints_did_not_validate() -> None:
    terminal = Terminal(["run", f"{ENDS}:Invalid"])
    assert terminal.end() == 1
    lines = terminal.screen.text.splitlines()
    assert lines[1] == "└── the answer did not validate"
    assert "age" not in lines[1]


def test_live_view_prints_child_process_output_above_run() -> None:
    terminal = Terminal(["run", f"{AGENTS / 'rude.py'}:Parent"])
    assert terminal.end() == 0
    lines = terminal.screen.text.splitlines()
    assert lines[:3] == ["by a child", "below Python", "Parent on scripted"]
    assert lines[3].startswith("└── ✓ starts_child()") or lines[3].startswith("├── ✓ starts_child()")
    assert lines[-1] == '"fine"'
    assert terminal.screen.strange == []


def test_live_view_of_unfinished_run_prints_totals() -> None:
    terminal = Terminal(["run", f"{ENDS}:SingleTurn"])
    assert terminal.end() == 1
    assert re.search(r"\nunfinished: 1 step · \d+ tokens", terminal.screen.text)


def test_live_view_of_failed_run_ends_with_error() -> None:
    terminal = Terminal(["run", f"{ENDS}:Invalid"])
    assert terminal.end() == 1
    assert re.search(r"\nfailed: \d+ tokens", terminal.screen.text)
    assert "error: `Invalid` got no valid output" in " ".join(terminal.screen.text.split())
    assert not terminal.screen.is_cursor_hidden


def test_dumb_terminal_prints_plain_lines() -> None:
    terminal = Terminal(["run", f"{ENDS}:Fine"], TERM="dumb")
    assert terminal.end() == 0
    assert terminal.screen.text.splitlines()[0] == "Fine on scripted"
    assert "\x1b" not in terminal.raw


@pytest.mark.parametrize("encoding", ["ascii"])
def test_terminal_without_unicode_prints_ascii(encoding: str) -> None:
    terminal = Terminal(["run", str(RESEARCHER), "--question", "hi"], PYTHONIOENCODING=encoding)
    assert terminal.end() == 0
    assert terminal.screen.text.isascii()
    assert 'ok search(query="Python")' in terminal.screen.text

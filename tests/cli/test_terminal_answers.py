"""Tests of human input at the terminal: a paused run asks its user."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import AGENTS
from tests.cli.screen import Terminal

import acorn

DESK = AGENTS / "desk.py"


def begun(store: Path, cls: str = "Desk") -> Terminal:
    return Terminal(["run", f"{DESK}:{cls}", "order 17", "--store", str(store)], width=200)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("y\n", "20.0 paid"),
        (" YES\n", "20.0 paid"),
        ("n\n\n", "did not approve"),
        ("\n\n", "did not approve"),
        ("no\ntoo much\n", "The reason: too much"),
        ("too much\nyes\n", "20.0 paid"),
    ],
)
def test_approval_typed_at_terminal_prompt_is_passed_to_tool(tmp_path: Path, typed: str, read: str) -> None:
    terminal = begun(tmp_path / "runs.db")
    terminal.until(lambda screen: "[y/N]" in screen.text)
    terminal.type(typed)
    assert terminal.end() == 0
    assert "settled" in terminal.screen.text
    (facts,) = acorn.runs(tmp_path / "runs.db").list()
    assert f"{facts.usage.total_tokens} tokens" in terminal.screen.text
    results = [str(each["content"]) for each in acorn.runs(tmp_path / "runs.db").get(facts.id).history]
    assert any(read in each for each in results)


def test_answer_typed_at_terminal_prompt_is_passed_to_agent(tmp_path: Path) -> None:
    terminal = begun(tmp_path / "runs.db", "Curious")
    terminal.until(lambda screen: "Which colour?" in screen.text)
    terminal.type("7\n")
    assert terminal.end() == 0
    assert '"7"' in terminal.screen.text


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("is_interrupted", [True, False])
def test_unanswered_terminal_prompt_prints_resume_command(tmp_path: Path, is_interrupted: bool) -> None:
    store = tmp_path / "runs.db"
    terminal = begun(store)
    terminal.until(lambda screen: "[y/N]" in screen.text)
    if is_interrupted:
        terminal.interrupt()
    else:
        terminal.type("\x04")
    assert terminal.end() == (130 if is_interrupted else 3)
    (facts,) = acorn.runs(store).list()
    assert facts.status == "waiting"
    command = f"To answer: acorn resume {facts.id[:8]} --agent {AGENTS / 'desk.py'}:Desk --store {store} --yes"
    assert command in terminal.screen.text.replace("\n", "")
    assert "Traceback" not in terminal.screen.text

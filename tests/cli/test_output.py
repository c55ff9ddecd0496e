"""Tests of standard output, standard error and the exit code of `acorn run`."""

from __future__ import annotations

import pytest
from tests.cli.conftest import AGENTS, Acorn

ENDS, RESEARCHER, RUDE = AGENTS / "ends.py", AGENTS / "researcher.py", AGENTS / "rude.py"
MANUAL = AGENTS / "manual.py"


def test_run_prints_output_as_one_line_of_json(acorn: Acorn) -> None:
    ended = acorn("run", f"{ENDS}:Fine")
    assert (ended.code, ended.out) == (0, '{"age":5}\n')


def test_text_output_is_printed_as_json_with_escaped_terminal_codes(acorn: Acorn) -> None:
    ended = acorn("run", f"{ENDS}:Text")
    assert ended.output == "zwölf\x1b[31m\x9b \u202e\nLines"
    assert "zwölf" in ended.out
    assert not set(ended.out) & {"\x1b", "\x9b", "\u202e"}


def test_agent_without_output_prints_null(acorn: Acorn) -> None:
    assert acorn("run", f"{ENDS}:NoOutput").out == "null\n"


def test_json_option_prints_output_and_run_details_as_one_json_line(acorn: Acorn) -> None:
    ended = acorn("run", RESEARCHER, "--question", "Who?", "--json")
    assert ended.code == 0
    assert ended.out.count("\n") == 1
    told = ended.output
    assert told.keys() == {"output", "usage", "cost", "steps", "stop_reason", "model", "seconds"}
    assert told["output"] == {"answer": "Guido van Rossum", "confidence": 0.9}
    assert told["usage"]["requests"] == 6
    assert told["usage"]["input_tokens"] > 0
    assert told["cost"] > 0
    assert (told["steps"], told["stop_reason"], told["model"]) == (2, "finish", "scripted")
    assert told["seconds"] > 0.3


def test_plain_view_prints_each_tool_call(acorn: Acorn) -> None:
    lines = acorn("run", RESEARCHER, "--question", "Who?").err.splitlines()
    assert lines[0] == "Researcher on scripted"
    assert lines[1] == "step 1: Let me [bold]look[/bold] that up."
    assert "a tool that prints" in lines
    calls = [line for line in lines if "(" in line]
    assert calls[0].startswith("step 1: broken() failed: ValueError: x must be positive (0.")  # The quicker one.
    assert calls[1].startswith('step 1: search(query="Python") -> ["Python: an article","Python: an article"] (0.')
    assert calls[2].startswith('[fact_check] step 1: search(query="Guido") -> ["Guido: an article"')
    assert calls[3].startswith('step 2: fact_check() -> {"is_true":true,"evidence":["Guido: an article"]} (0.')
    assert "answer: did not validate, requested again" in lines
    assert lines[-1].startswith("finished: 2 steps, ")
    assert "tokens, $0.00" in lines[-1]


def test_plain_view_prints_error_of_call_to_unknown_tool(acorn: Acorn) -> None:
    err = acorn("run", f"{ENDS}:WrongCalls").err
    assert 'step 1: serch(query="x") failed: There is no tool `serch`.' in err
    assert "step 1: search(limit=3) failed: " in err


def test_plain_view_numbers_branches_with_same_name(acorn: Acorn) -> None:
    lines = [line.partition(" (")[0] for line in acorn("run", AGENTS / "twins.py").err.splitlines()]
    for number, topic in ((1, "alpha"), (2, "beta")):
        assert [line for line in lines if line.startswith(f"[check#{number}")] == [
            f"[check#{number}] step 1: Checking {topic}.",
            f'[check#{number}] step 1: look(topic="{topic}") -> about {topic}',
            f'[check#{number}] step 2: deep(topic="{topic}") -> deep {topic}',
        ]
        assert f'step 1: check(topic="{topic}") -> checked {topic}' in lines


@pytest.mark.parametrize("cls", ["Twice", "SideBySide"])
def test_plain_view_numbers_branches_started_by_hook(acorn: Acorn, cls: str) -> None:
    lines = [line.partition(" (")[0] for line in acorn("run", f"{MANUAL}:{cls}").err.splitlines()]
    assert lines[1:3] == ["step 1: To work.", "step 1: work() -> 7"]
    topics: list[str] = []
    for name in ("Review", "Review#2"):
        own = [line.removeprefix(f"[{name}] ") for line in lines if line.startswith(f"[{name}]")]
        topic = own[0].removeprefix("step 1: Reviewing ").rstrip(".")
        assert own == [f"step 1: Reviewing {topic}.", f'step 1: look(topic="{topic}") -> about {topic}']
        assert f'step 1: branch {name} -> {{"topic":"{topic}","is_true":true}}' in lines
        topics.append(topic)
    assert sorted(topics) == ["alpha", "beta"]


def test_plain_view_prints_branch_of_tool_before_tool_result(acorn: Acorn) -> None:
    lines = [line.partition(" (")[0] for line in acorn("run", f"{MANUAL}:InTool").err.splitlines()]
    assert lines[1:6] == [
        "step 1: To work.",
        "[Review] step 1: Reviewing beta.",
        '[Review] step 1: look(topic="beta") -> about beta',
        'step 1: branch Review -> {"topic":"beta","is_true":true}',
        "step 1: work() -> looked into beta",
    ]


def test_plain_view_of_failing_branch_prints_its_error(acorn: Acorn) -> None:
    ended = acorn("run", f"{MANUAL}:Failing")
    assert ended.code == 0
    assert "step 1: branch Broken failed: ParseError: `Broken` got no valid output" in ended.err


def test_plain_view_prints_call_that_did_not_complete_as_failed(acorn: Acorn) -> None:
    err = acorn("run", f"{RUDE}:Strange").err
    assert "step 1: strange() failed: This call was not completed: the run was stopped." in err.splitlines()


def test_plain_view_of_unfinished_run_prints_its_call(acorn: Acorn) -> None:
    lines = acorn("run", f"{ENDS}:SingleTurn").err.splitlines()
    assert lines[1].startswith('step 1: search(query="x") -> found x')
    assert lines[2].startswith("unfinished: 1 step, ")


def test_plain_view_numbers_steps_but_not_the_final_answer(acorn: Acorn) -> None:
    lines = acorn("run", f"{RUDE}:Talks").err.splitlines()
    assert lines[1:3] == ["answer: first", "answer: second"]  # A single turn has no steps.
    assert "step" not in lines[-1]
    lines = acorn("run", f"{RUDE}:Wanders").err.splitlines()
    assert lines[1:3] == ["step 1: let me think", "step 2: and look"]
    assert lines[3].startswith("step 2: rests() -> ")
    assert lines[4] == "answer: there"
    assert lines[-1].startswith("finished: 2 steps, ")
    lines = acorn("run", f"{RUDE}:Forced").err.splitlines()
    assert [line for line in lines if "step 2" in line] == []
    assert lines[-3:-1] == ["answer: two", "answer: did not validate, requested again"]
    assert lines[-1].startswith("finished: 1 step, ")


@pytest.mark.parametrize(
    ("cls", "message", "kind"),
    [
        ("Fails", "the server is on fire", "ModelError"),
        ("Invalid", "`Invalid` got no valid output from `scripted` in 1 attempt", "ParseError"),
        ("Raises", 'KeyError: "a bug of the user\'s"', "KeyError"),
        ("SingleTurn", "`SingleTurn` did not finish: the model called `search` in its single turn.", "Unfinished"),
    ],
)
def test_failed_run_exits_with_1_and_one_line_error(acorn: Acorn, cls: str, message: str, kind: str) -> None:
    ended = acorn("run", f"{ENDS}:{cls}")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[-1].startswith("error: ")
    assert message in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err

    told = acorn("run", f"{ENDS}:{cls}", "--json")
    assert told.code == 1
    assert told.output["error"]["type"] == kind
    assert told.output["output"] is None
    assert told.output["usage"]["requests"] == (0 if kind == "ModelError" else 1)
    assert told.output["stop_reason"] == ("unfinished" if kind == "Unfinished" else "error")


def test_json_option_of_failed_run_prints_error_attributes(acorn: Acorn) -> None:
    told = acorn("run", f"{ENDS}:Fails", "--json").output["error"]
    assert told["status"] == 500
    assert told["retryable"] is True
    wrong = acorn("run", f"{ENDS}:Invalid", "--json").output["error"]
    assert wrong["errors"] == [{"path": "age", "expected": "integer", "received": "old"}]


def test_debug_option_prints_traceback_of_failed_run(acorn: Acorn) -> None:
    err = acorn("run", f"{ENDS}:Raises", "--debug").err
    assert "in on_finish" in err
    assert err.splitlines()[-1].startswith("error: KeyError")


def test_model_option_replaces_declared_model(acorn: Acorn) -> None:
    ended = acorn("run", f"{ENDS}:Fine", "--model", "local/no/such/file.gguf")
    assert ended.code in (1, 2)
    assert "file.gguf" in ended.err.splitlines()[-1]

"""Tests of tools that raise: the log, the journal, the record and the views show the failure with its traceback."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, field_serializer
from tests.behaviour.small_programs import WAYS, Plain
from tests.cases import case

import acorn
from acorn import Run, Step, listen, module, tool
from acorn.journal import Entry, ToolFinished
from acorn.testing import ScriptedModel, call, finish


def find_the_place(where: str) -> str:
    raise ValueError(f"no place {where}")


@tool
def search(where: str) -> str:
    """Search."""
    return find_the_place(where)


@tool
async def asearch(where: str) -> str:
    """Search."""
    await asyncio.sleep(0)
    return find_the_place(where)


@tool
def look() -> str:
    """Look."""
    return "seen"


class Masked(BaseModel):
    card: str

    @field_serializer("card")
    def mask(self, card: str) -> str:
        return find_the_place("the card")


@tool
def show() -> Any:
    """Show."""
    return Masked(card="4111")


def _no(color: str) -> str:
    raise KeyError(color)


@tool
def paint(color: Annotated[str, AfterValidator(_no)]) -> str:
    """Paint."""
    return "painted"


TOOLS = [search, asearch, look, show, paint]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    with caplog.at_level(logging.DEBUG, logger="acorn"):
        yield lambda: [each for each in caplog.records if each.levelno >= logging.WARNING]


def agent(*calls: Any, **settings: Any) -> Plain:
    return Plain(model=ScriptedModel([*calls, finish("done")]), tools=TOOLS, **settings)


def formatted(record: logging.LogRecord) -> str:
    return logging.Formatter().format(record)


def test_failed_tool_is_logged_as_warning_with_traceback(logged: Any, caplog: pytest.LogCaptureFixture) -> None:
    for way in WAYS:
        for name in ("search", "asearch"):
            with case(way, name):
                caplog.clear()
                run = WAYS[way](agent(call(name, where="Rome")))
                (record,) = logged()
                assert record.name == "acorn"
                assert record.levelno == logging.WARNING
                text = formatted(record)
                assert name in record.getMessage()
                assert run.id in record.getMessage()
                assert "ValueError: no place Rome" in text
                assert "find_the_place" in text
                assert "Traceback (most recent call last)" in text


def test_each_failed_call_of_a_response_is_logged(logged: Any) -> None:
    agent(call("search", where="Rome") & call("look") & call("asearch", where="Bonn")).run()
    assert len(logged()) == 2
    text = "\n".join(map(formatted, logged()))
    assert "no place Rome" in text
    assert "no place Bonn" in text


def test_failed_serializer_and_validator_are_logged_as_warning_with_traceback(
    logged: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for name, made in {"show": call("show"), "paint": call("paint", color="blue")}.items():
        with case(name):
            caplog.clear()
            agent(made).run()
            (record,) = logged()
            assert "Traceback" in formatted(record)
            assert name in record.getMessage()


def test_run_without_failed_tool_logs_no_warning(logged: Any) -> None:
    agent(call("look")).run()
    assert logged() == []


def test_wrong_arguments_and_unknown_tools_log_no_traceback(logged: Any) -> None:
    """These are mistakes of the model, which it reads and corrects."""
    agent(call("search"), call("nothing")).run()
    assert not any("Traceback" in formatted(record) for record in logged())


def test_failed_tool_in_branch_is_logged(logged: Any) -> None:
    class Inner(module[Any, str]):
        """Search inside."""

        initial_input: Any = []
        final_output = str
        max_steps = 3
        tools = [search]

    model = ScriptedModel([call("inner"), call("search", where="Rome"), finish("inside"), finish("done")])
    run = Plain(model=model, branches={"inner": Inner}).run()
    (record,) = logged()
    assert "no place Rome" in formatted(record)
    assert len(run.branches[0].tool_errors) == 1


class Failing(module[Any, str]):
    """Search inside."""

    initial_input: Any = []
    final_output = str

    def on_start(self, step: Step) -> None:
        find_the_place("Rome")


class Strict(module[Any, str]):
    """Search inside."""

    initial_input: Any = [("color", Annotated[str, AfterValidator(_no)])]
    final_output = str


def test_failed_branch_and_agent_as_tool_are_logged_and_listed(logged: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings: list[Any] = [{"branches": {"failing": Failing}}, {"tools": [Failing]}]
    for declared in settings:
        for way in WAYS:
            with case(declared, way):
                caplog.clear()
                model = ScriptedModel([call("failing"), finish("done")])
                run = WAYS[way](Plain(model=model, **declared))
                text = formatted(*logged())
                assert "ValueError: no place Rome" in text
                assert "find_the_place" in text
                (failed,) = run.tool_errors
                assert (failed.name, failed.error) == ("failing", "ValueError: no place Rome")


def test_failed_input_validator_of_branch_is_logged_and_listed(logged: Any) -> None:
    model = ScriptedModel([call("inner", color="red"), finish("done")])
    run = Plain(model=model, branches={"inner": Strict}).run()
    assert "KeyError: 'red'" in formatted(*logged())
    assert [failed.name for failed in run.tool_errors] == ["inner"]


def test_branch_without_valid_answer_logs_no_warning(logged: Any) -> None:
    class Inner(module[Any, str]):
        """Search inside."""

        initial_input: Any = []
        final_output = str
        parse_retries = 0

    model = ScriptedModel([call("inner"), finish(wrong="x"), finish("done")])
    run = Plain(model=model, branches={"inner": Inner}).run()
    assert logged() == run.tool_errors == []


def test_journal_entry_of_failed_tool_has_traceback() -> None:
    heard: list[Entry] = []
    with listen(heard.append):
        run = agent(call("search", where="Rome")).run()
    for entries in (heard, run.journal.entries):
        (entry,) = [entry for entry in entries if isinstance(entry, ToolFinished)]
        assert entry.error == "ValueError: no place Rome"
        assert "find_the_place" in str(entry)
        assert "Traceback (most recent call last)" in str(entry)


def test_journal_entry_of_successful_tool_has_no_traceback() -> None:
    run = agent(call("look")).run()
    assert "Traceback" not in str(run.journal.entries)


def test_model_reads_no_traceback() -> None:
    made = agent(call("search", where="Rome"))
    run = made.run()
    assert "Traceback" not in str(run.history)
    assert "find_the_place" not in str(run.history)


def test_record_lists_tool_errors() -> None:
    run = agent(call("search", where="Rome") & call("look"), call("asearch", where="Bonn")).run()
    assert run.output == "done"
    assert len(run.tool_errors) == 2
    first, second = map(str, run.tool_errors)
    assert "search" in first
    assert "ValueError: no place Rome" in first
    assert "ValueError: no place Bonn" in second


def test_record_without_failed_tool_has_no_tool_errors() -> None:
    assert not agent(call("look")).run().tool_errors


def test_record_lists_tool_error_in_every_way() -> None:
    for way in WAYS:
        with case(way):
            assert len(WAYS[way](agent(call("search", where="Rome"))).tool_errors) == 1


def test_tool_errors_are_available_inside_the_run() -> None:
    seen: list[int] = []

    class Watching(Plain):
        def on_step(self, step: Step) -> None:
            seen.append(len(acorn.current_run().tool_errors))

    Watching(model=ScriptedModel([call("search", where="Rome"), call("look"), finish("done")]), tools=TOOLS).run()
    assert seen == [1, 1]


def test_tool_errors_stay_if_hook_repairs_the_result() -> None:
    class Repairing(Plain):
        def on_step(self, step: Step) -> None:
            for result in step.tool_results:
                result.error, result.output = None, "Rome is in Italy"

    model = ScriptedModel([call("search", where="Rome"), finish("done")])
    run = Repairing(model=model, tools=TOOLS).run()
    assert model.requests[1].messages[-1]["content"] == "Rome is in Italy"
    assert len(run.tool_errors) == 1


def test_saved_record_and_stored_run_keep_tool_errors(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    run = agent(call("search", where="Rome"), store=store).run()
    for name, again in {
        "json": Run.from_json(run.to_json(), Plain),
        "json without class": Run.from_json(run.to_json()),
        "store": acorn.runs(store).get(run.id),
    }.items():
        with case(name):
            assert len(again.tool_errors) == 1
            assert "ValueError: no place Rome" in str(again.tool_errors[0])
            assert "find_the_place" in str(again.journal.entries)


def test_failed_tool_before_interruption_is_listed_after_resume(tmp_path: Path) -> None:
    class Interrupted(Plain):
        is_first = True

        def on_step(self, step: Step) -> None:
            if type(self).is_first:
                type(self).is_first = False
                raise KeyboardInterrupt

    def made() -> Interrupted:
        model = ScriptedModel([call("search", where="Rome"), finish("done")], by_turn=True)
        return Interrupted(model=model, tools=TOOLS, store=tmp_path / "runs.db")

    with pytest.raises(KeyboardInterrupt):
        made().using(run_id="one").run()
    again = made()
    assert again.resume("one") == "done"
    assert again.last is not None
    assert len(again.last.tool_errors) == 1


def test_views_show_traceback_of_failed_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from acorn.cli import main

    store = tmp_path / "runs.db"
    run = agent(call("search", where="Rome"), store=store).run()
    assert main(["show", run.id, "--store", str(store), "--full"]) == 0
    shown = capsys.readouterr().out
    assert "no place Rome" in shown
    assert "find_the_place" in shown
    assert "find_the_place" in run._repr_html_()


def test_traceback_contains_no_values_of_variables(logged: Any) -> None:
    """The traceback contains source lines and the message, never the values of variables."""

    def leak(where: str) -> str:
        """Leak."""
        token = "sk-canary-" + where
        raise RuntimeError("no") if token else ValueError

    run = Plain(model=ScriptedModel([call("leak", where="x"), finish("done")]), tools=[leak]).run()
    assert "sk-canary-x" not in str(run.journal.entries)
    assert not any("sk-canary-x" in formatted(record) for record in logged())


def test_traceback_contains_no_keys(logged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-0123456789abcdefghij")

    def leak() -> str:
        """Leak."""
        raise RuntimeError("the key sk-proj-0123456789abcdefghij is wrong")

    run = Plain(model=ScriptedModel([call("leak"), finish("done")]), tools=[leak]).run()
    (failed,) = run.tool_errors
    assert "RuntimeError: the key *** is wrong" in str(failed.traceback)
    assert not any("sk-proj-0123456789abcdefghij" in formatted(record) for record in logged())


def test_tool_that_exceeds_its_timeout_is_logged_and_listed(logged: Any) -> None:
    @tool(timeout=0.01)
    def wait() -> str:
        """Wait."""
        time.sleep(0.2)
        return "late"

    run = Plain(model=ScriptedModel([call("wait"), finish("done")]), tools=[wait]).run()
    (record,) = logged()
    assert "TimeoutError" in formatted(record)
    assert [failed.name for failed in run.tool_errors] == ["wait"]


def test_page_shows_traceback_of_failed_tool() -> None:
    from acorn.web.page.rows import entry_event

    run = agent(call("search", where="Rome")).run()
    (failed,) = run.tool_errors
    assert "find_the_place" in entry_event(failed)["traceback"]

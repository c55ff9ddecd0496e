"""Tests of `perform`: a process that receives the id of a submitted run drives it, and repeated delivery is safe."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel
from tests.cases import each_case
from tests.commits import dead_here, elsewhere
from tests.long_version import IS_LONG

import acorn
from acorn import AcornError, DeclarationError, InputError, Paused, StoreError, ask_human, module, tool
from acorn.durable import DeliverAgainError, aperform, perform
from acorn.stores import MemoryStore, SQLiteStore, Store
from acorn.stores.port import RunCancelledError
from acorn.testing import ScriptedModel, call, finish

Perform = Callable[..., str]
Kind = TypeVar("Kind")


class Answer(BaseModel):
    text: str


class Desk(module):
    """Answer the question."""

    initial_input = [("question", str)]
    final_output = Answer
    model: Any = "openai/gpt-4o"
    max_steps = 8


class Extract(module[Any, Kind]):
    """Extract something."""

    initial_input = [("question", str)]


AGENTS = """
from typing import Any
from acorn import module
from acorn.testing import ScriptedModel, finish


class Desk(module):
    initial_input = ["question"]
    final_output = ["text"]
    model: Any = ScriptedModel(lambda request: finish(text="Imported."))
    store = "runs.db"


class Office:
    class Inner(Desk):
        pass


KINDS = [Desk, Office.Inner]
"""


def program(folder: Path, text: str) -> str:
    done = subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def aloud(*arguments: Any, **options: Any) -> str:
    return asyncio.run(aperform(*arguments, **options))


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "runs.db")
    yield made
    made.close()


@pytest.fixture(params=[perform, aloud] if IS_LONG else [None])
def deliver(request: pytest.FixtureRequest, store: Store) -> Perform:
    """Return a way to perform a run. The short version of the tests uses one way for each store."""
    found: Perform = request.param or (perform if isinstance(store, SQLiteStore) else aloud)
    return found


def put(store: Store, agent: type[module[Any, Any]] = Desk, **given: Any) -> Any:
    return agent(store=store).using(deliver=False).submit(**given)


def test_perform_of_submitted_run_starts_and_finishes_run(store: Store, deliver: Perform) -> None:
    handle = put(store, question="Who?")
    assert handle.status() == "queued"
    model = ScriptedModel([finish(text="Nobody.")])
    assert deliver(store, handle.run_id, Desk(model=model)) == "done"
    assert "Who?" in str(model.requests[0].messages)
    assert handle.status() == "done"
    assert handle.result() == Answer(text="Nobody.")
    assert acorn.runs(store).get(handle.run_id).usage.requests == 1


def test_perform_of_finished_run_makes_no_model_call(store: Store, deliver: Perform) -> None:
    handle = put(store, question="Who?")
    for _ in range(3):
        assert deliver(store, handle.run_id, Desk(model=ScriptedModel([finish(text="Nobody.")]))) == "done"
    assert acorn.runs(store).get(handle.run_id).usage.requests == 1


def test_perform_uses_settings_of_submitting_instance(store: Store, deliver: Perform) -> None:
    handle = Desk(store=store, max_tokens=77, model={"model": "openai/gpt-5", "timeout": 3}).using(deliver=False)
    run_id = handle.submit(question="Who?").run_id
    seen: list[Any] = []

    model = ScriptedModel([finish(text="Me.")])

    class Looking(Desk):
        def on_start(self, step: Any) -> Any:
            seen.append((step.max_tokens, self.model))
            step.model = model
            return step

    Looking.__module__, Looking.__qualname__ = Desk.__module__, Desk.__qualname__
    assert deliver(store, run_id, Looking) == "done"
    assert seen == [(77, {"model": "openai/gpt-5", "timeout": 3})]


def test_perform_of_paused_run_returns_waiting_and_finishes_after_answer(store: Store, deliver: Perform) -> None:
    class Asking(Desk):
        tools = [ask_human]

    handle = put(store, Asking, question="Which?")
    agent = Asking(model=ScriptedModel([call("ask_human", question="Red or blue?"), finish(text="Blue.")]))
    assert deliver(store, handle.run_id, agent) == "waiting"
    waiting = handle.result()
    assert isinstance(waiting, Paused)
    assert waiting.request.question == "Red or blue?"
    assert deliver(store, handle.run_id, agent) == "waiting"
    acorn.runs(store).answer(waiting.request.id, "blue")
    assert deliver(store, handle.run_id, agent) == "done"
    assert handle.result() == Answer(text="Blue.")


def test_perform_of_failing_run_returns_failed_without_retry(store: Store, deliver: Perform) -> None:
    class Failing(Desk):
        def on_finish(self, output: Any) -> None:
            raise KeyError("no such order")

    handle = put(store, Failing, question="Who?")
    agent = Failing(model=ScriptedModel([finish(text="Me.")]))
    assert deliver(store, handle.run_id, agent) == "failed"
    assert deliver(store, handle.run_id, agent) == "failed"
    with pytest.raises(AcornError, match="no such order"):
        handle.result()


def test_perform_of_run_claimed_by_other_live_process_raises_deliver_again_error(
    store: Store, deliver: Perform
) -> None:
    handle = put(store, question="Who?")
    store.claim(handle.run_id, elsewhere())
    with pytest.raises(DeliverAgainError, match="is driven by process 812 on host-a"):
        deliver(store, handle.run_id, Desk)
    assert handle.status() == "running"


def test_perform_of_run_that_current_process_is_driving_raises_deliver_again_error(store: Store) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(Desk):
        def on_start(self, step: Any) -> Any:
            begun.set()
            goes_on.wait()
            return step

    handle = put(store, Slow, question="Who?")
    agent = Slow(model=ScriptedModel([finish(text="Me.")]))
    outcomes: list[str] = []
    thread = threading.Thread(target=lambda: outcomes.append(perform(store, handle.run_id, agent)))
    thread.start()
    begun.wait()
    with pytest.raises(DeliverAgainError, match="is already driven by this process"):
        perform(store, handle.run_id, agent)
    goes_on.set()
    thread.join()
    assert outcomes == ["done"]


def test_perform_of_running_run_through_second_store_url_does_not_drive_it_twice(tmp_path: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(Desk):
        def on_start(self, step: Any) -> Any:
            if not begun.is_set():
                begun.set()
                goes_on.wait()
            return step

    store, other = SQLiteStore(tmp_path / "runs.db"), SQLiteStore(tmp_path / "runs.db")
    handle = put(store, Slow, question="Who?")
    agent = Slow(model=ScriptedModel([finish(text="Me.")]))
    outcomes: list[str] = []
    thread = threading.Thread(target=lambda: outcomes.append(perform(store, handle.run_id, agent)), daemon=True)
    thread.start()
    begun.wait()
    with pytest.raises(DeliverAgainError, match="is already driven by this process"):
        perform(other, handle.run_id, agent)
    goes_on.set()
    thread.join()
    assert outcomes == ["done"]
    assert perform(other, handle.run_id, agent) == "done"
    store.close()
    other.close()


def test_perform_of_run_whose_last_five_processes_died_returns_failed(store: Store, deliver: Perform) -> None:
    handle = put(store, question="Who?")
    for at in range(5):
        assert store.claim(handle.run_id, dead_here(str(at)))
    agent = Desk(model=ScriptedModel([]))
    assert deliver(store, handle.run_id, agent) == "failed"
    with pytest.raises(StoreError, match="five processes died"):
        handle.result()


def test_perform_of_run_claimed_but_not_driven_by_current_process_claims_it_again(
    store: Store, deliver: Perform
) -> None:
    handle = put(store, question="Who?")
    store.claim(handle.run_id, acorn.stores.lease.this_process())  # Nothing here drives it.
    assert deliver(store, handle.run_id, Desk(model=ScriptedModel([finish(text="Me.")]))) == "done"


def test_perform_with_stop_event_stops_at_next_commit_and_next_perform_resumes_run(
    store: Store, deliver: Perform
) -> None:
    stop, calls = threading.Event(), list[str]()

    @tool(once=True)
    def first() -> str:
        calls.append("first")
        stop.set()
        return "1"

    @tool(once=True)
    def second() -> str:
        calls.append("second")
        return "2"

    class Working(Desk):
        tools = [first, second]

    handle = put(store, Working, question="Who?")
    replies = [call("first"), call("second"), finish(text="Both.")]
    with pytest.raises(DeliverAgainError, match=r"stopped at its last commit\. Deliver it again"):
        deliver(store, handle.run_id, Working(model=ScriptedModel(replies[:1])), stop=stop)
    assert handle.status() == "queued"
    assert deliver(store, handle.run_id, Working(model=ScriptedModel(replies[1:]))) == "done"
    assert calls == ["first", "second"]
    assert handle.result() == Answer(text="Both.")


def test_perform_with_stop_event_finishes_running_tools_before_stop(store: Store, deliver: Perform) -> None:
    stop, calls = threading.Event(), list[str]()
    slow = threading.Event()

    @tool(once=True)
    def quick() -> str:
        stop.set()
        slow.set()
        return "quick"

    @tool(once=True)
    def late() -> str:
        slow.wait()
        calls.append("late")
        return "late"

    class Working(Desk):
        tools = [quick, late]

    handle = put(store, Working, question="Who?")
    both = ScriptedModel([call("quick") & call("late")])
    with pytest.raises(DeliverAgainError):
        deliver(store, handle.run_id, Working(model=both), stop=stop)
    model = ScriptedModel([finish(text="Both.")])
    assert deliver(store, handle.run_id, Working(model=model)) == "done"
    assert calls == ["late"]
    assert "Unknown" not in str(model.requests[0].messages)


def test_perform_with_stop_event_at_end_of_run_finishes_run(store: Store, deliver: Perform) -> None:
    stop = threading.Event()
    stop.set()
    handle = put(store, question="Who?")
    with pytest.raises(DeliverAgainError):
        deliver(store, handle.run_id, Desk, stop=stop)
    assert handle.status() == "queued"

    class Last(Desk):
        def on_finish(self, output: Any) -> None:
            stop.set()

    stop.clear()
    handle = put(store, Last, question="Who?")
    assert deliver(store, handle.run_id, Last(model=ScriptedModel([finish(text="Me.")])), stop=stop) == "done"


def test_perform_of_cancelled_run_returns_cancelled(store: Store, deliver: Perform) -> None:
    handle = put(store, question="Who?")
    handle.cancel()
    assert deliver(store, handle.run_id, Desk) == "cancelled"
    with pytest.raises(RunCancelledError, match="was cancelled"):
        handle.result()


def test_cancel_during_perform_ends_run_as_cancelled(store: Store, deliver: Perform) -> None:
    class Cancelling(Desk):
        def on_start(self, step: Any) -> Any:
            handle.cancel()
            return step

    handle = put(store, Cancelling, question="Who?")
    model = ScriptedModel([])
    assert deliver(store, handle.run_id, Cancelling(model=model)) == "cancelled"
    assert handle.status() == "cancelled"


def test_perform_with_several_agents_selects_class_by_name_stored_with_run(store: Store, deliver: Perform) -> None:
    class Other(Desk):
        pass

    class Desks(Desk):
        model = ScriptedModel([finish(text="a"), finish(text="b"), finish(text="c")])

    run_ids = [put(store, Desks, question="Who?").run_id for _ in range(3)]
    name = store.read(run_ids[0])[0].facts.agent
    assert name.endswith("Desks")
    assert deliver(store, run_ids[0], [Other, Desks]) == "done"
    assert deliver(store, run_ids[1], {Desks, Other}) == "done"
    assert deliver(store, run_ids[2], {name: Desks}.get) == "done"


def test_perform_with_unknown_class_raises_store_error_and_leaves_run_queued(store: Store, deliver: Perform) -> None:
    class Other(Desk):
        pass

    handle = put(store, question="Who?")
    with pytest.raises(StoreError, match=":Desk` is not among the agents of this process"):
        deliver(store, handle.run_id, Other)
    assert handle.status() == "queued"


def test_perform_with_input_that_class_rejects_raises_store_error_and_leaves_run_queued(
    store: Store, deliver: Perform
) -> None:
    class Newer(Desk):
        initial_input = [("question", str), ("language", str)]

    Newer.__module__, Newer.__qualname__ = Desk.__module__, Desk.__qualname__
    handle = put(store, question="Who?")
    with pytest.raises(StoreError, match="The input of the saved run no longer fits its class"):
        deliver(store, handle.run_id, Newer)
    assert handle.status() == "queued"


def test_perform_without_agents_finds_already_loaded_class_by_stored_name(store: Store, deliver: Perform) -> None:
    class Desk(module):  # Not the parent, and inside an ask.
        """Answer."""

        initial_input = [("question", str)]
        final_output = Answer
        model: Any = ScriptedModel([finish(text="Found.")])

    handle = put(store, Desk, question="Who?")
    assert deliver(store, handle.run_id) == "done"
    assert handle.result() == Answer(text="Found.")


def test_perform_in_new_process_drives_class_that_program_has_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "desks.py").write_text(AGENTS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    desks = importlib.import_module("desks")
    monkeypatch.delitem(sys.modules, "desks")
    with closing(SQLiteStore(tmp_path / "runs.db")) as store:
        run_ids = [put(store, kind, question="Who?").run_id for kind in desks.KINDS]
    act = f"import desks; from acorn.durable import perform; print(*(perform('runs.db', each) for each in {run_ids}))"
    show = f"from desks import *; print(*(a().resume(each).text for a, each in zip(KINDS, {run_ids})))"
    assert program(tmp_path, f"{act}; {show}") == "done done\nImported. Imported.\n"


def test_perform_with_two_different_agents_of_equal_class_name_raises_declaration_error(
    store: Store, deliver: Perform
) -> None:
    handle = put(store, question="Who?")
    with pytest.raises(DeclarationError, match=r"Two agents have the class name `.*:Desk`"):
        deliver(store, handle.run_id, [Desk, Desk(max_steps=3)])
    assert handle.status() == "queued"
    agent = Desk(model=ScriptedModel([finish(text="Me.")]))
    assert deliver(store, handle.run_id, iter([agent, agent])) == "done"


def test_perform_of_class_that_is_not_loaded_raises_store_error_and_leaves_run_queued(
    store: Store, deliver: Perform
) -> None:
    class Gone(Desk):
        pass

    Gone.__module__, Gone.__qualname__ = "no_such_module", "Gone"
    handle = put(store, Gone, question="Who?")
    Gone.__qualname__ = "Else"
    with pytest.raises(StoreError, match="its class `no_such_module:Gone` is not among the agents of this process"):
        deliver(store, handle.run_id)
    assert handle.status() == "queued"


def test_perform_with_unknown_run_id_or_invalid_arguments_raises_error(store: Store, deliver: Perform) -> None:
    with pytest.raises(StoreError, match="Run 'nobody' is not in"):
        deliver(store, "nobody")
    with pytest.raises(DeclarationError, match="`agents` of `perform` must be a module class"):
        deliver(store, "nobody", "agents:Desk")
    with pytest.raises(DeclarationError, match="`agents` of `perform` must be a module class"):
        deliver(store, "nobody", [int])
    with pytest.raises(DeclarationError, match="`store` of `perform` must be a file path"):
        deliver(Desk, "nobody")


# Submission


def test_submit_twice_with_equal_run_id_and_input_creates_one_run(store: Store) -> None:
    named = Desk(store=store).using(deliver=False, run_id="order-17")
    assert named.submit(question="Who?").run_id == named.submit(question="Who?").run_id == "order-17"
    with pytest.raises(StoreError, match="was started with another input"):
        named.submit(question="Why?")
    assert len(store.list()) == 1


def test_call_with_run_id_of_submitted_run_drives_run(store: Store) -> None:
    put_first = Desk(store=store).using(deliver=False, run_id="order-17").submit(question="Who?")
    here = Desk(store=store, model=ScriptedModel([finish(text="Me.")])).using(run_id="order-17")
    assert here(question="Who?") == Answer(text="Me.")
    assert put_first.result() == Answer(text="Me.")


def test_queued_run_is_readable_through_runs_get_and_is_finished_by_resume(store: Store) -> None:
    handle = put(store, question="Who?")
    record = acorn.runs(store).get(handle.run_id)
    found: Any = (record.input, record.steps, record.stop_reason, record.error)
    assert found == ({"question": "Who?"}, 0, None, None)
    assert Desk(store=store, model=ScriptedModel([finish(text="Me.")])).resume(handle.run_id) == Answer(text="Me.")


def test_submit_with_wrong_input_or_unstorable_setting_raises_error_and_stores_nothing(store: Store) -> None:
    agent = Desk(store=store).using(deliver=False)
    with pytest.raises(InputError, match="question"):
        agent.submit(query="Who?")
    with pytest.raises(DeclarationError, match="has no store"):
        Desk().using(deliver=False).submit(question="Who?")
    with pytest.raises(DeclarationError, match=r"`model` of this `Desk` is .*, which cannot be stored"):
        agent.using(model=ScriptedModel([])).submit(question="Who?")
    with pytest.raises(DeclarationError, match="`model` of this `Desk` has `api_key`, which cannot be stored"):
        agent.using(model={"model": "openai/gpt-5", "api_key": "sk-secret"}).submit(question="Who?")
    with pytest.raises(DeclarationError, match="`tools` of this `Desk`"):
        agent.using(tools=[ask_human]).submit(question="Who?")
    with pytest.raises(DeclarationError, match="`deps` of `Desk` cannot be stored"):
        agent.using(deps=object()).submit(question="Who?")
    with pytest.raises(DeclarationError, match=r"`history`, `thread` and `before` of `Desk\.using`"):
        agent.using(history=[{"role": "user", "content": "Hi"}]).submit(question="Who?")
    with pytest.raises(DeclarationError, match=r"The type arguments of this `Extract\[\.\.\.\]` cannot be stored"):
        Extract[Answer](store=store).using(deliver=False).submit(question="Who?")
    with pytest.raises(DeclarationError, match="has no effect on a queued run"), Desk.override(max_steps=3):
        agent.submit(question="Who?")
    assert store.list() == []


def test_submit_to_store_that_cannot_deliver_to_workers_raises_store_error(store: Store) -> None:
    with pytest.raises(StoreError, match="cannot deliver runs to workers"):
        Desk(store=store).submit(question="Who?")
    assert store.list() == []


@each_case(
    ("options", "words"),
    [
        ({"priority": "high"}, "`priority` of `Desk.using` must be a whole number"),
        ({"priority": 2**40}, "`priority` of `Desk.using` must be a whole number"),
        ({"not_before": "tomorrow"}, "`not_before` of `Desk.using` must be a datetime"),
        ({"not_before": float("nan")}, "`not_before` of `Desk.using` must be a datetime"),
        ({"not_before": 1e300}, "`not_before` of `Desk.using` must be .* in the years 1 to 9999"),
        ({"not_before": timedelta.max}, "`not_before` of `Desk.using` must be .* in the years 1 to 9999"),
        ({"deliver": 1}, "`deliver` of `Desk.using` must be True or False"),
        ({"deliver": False, "priority": 3}, "apply only to the workers of the store"),
    ],
)
def test_using_with_invalid_submit_options_raises_declaration_error(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        Desk().using(**options)


def test_direct_call_with_submit_options_raises_declaration_error(store: Store) -> None:
    with pytest.raises(DeclarationError, match="applies only to queued runs"):
        Desk(store=store).using(priority=3)(question="Who?")


def test_handle_result_raises_timeout_error_after_timeout_and_store_error_after_delete(store: Store) -> None:
    handle = put(store, question="Who?")
    with pytest.raises(TimeoutError, match=r"is still `queued` after 0\.01 s"):
        handle.result(timeout=0.01)
    store.delete(handle.run_id)
    with pytest.raises(StoreError, match="is not in"):
        handle.result()


def test_handle_follow_yields_journal_entries(store: Store) -> None:
    handle = put(store, question="Who?")
    agent = Desk(model=ScriptedModel([finish(text="Me.")]))
    thread = threading.Thread(target=lambda: perform(store, handle.run_id, agent))
    thread.start()
    kinds = [type(entry).__name__ for entry in handle.follow()]
    thread.join()
    assert (kinds[0], kinds[-1]) == ("RunStarted", "RunFinished")


def test_async_handle_returns_status_and_result_and_cancels_run(store: Store) -> None:
    async def use() -> None:
        agent = Desk(store=store).using(deliver=False)
        handle = await agent.asubmit(question="Who?")
        assert await handle.status() == "queued"
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.01)
        drives = asyncio.ensure_future(aperform(store, handle.run_id, Desk(model=ScriptedModel([finish(text="Me.")]))))
        assert await handle.result() == Answer(text="Me.")
        assert type([entry async for entry in handle.follow()][-1]).__name__ == "RunFinished"
        assert await drives == "done"
        other = await agent.asubmit(question="Who?")
        await other.cancel()
        with pytest.raises(RunCancelledError):
            await other.result()

    asyncio.run(use())

"""Tests of the ids that acorn gives to tool calls without an id: no two calls of a run share one."""

from __future__ import annotations

from typing import Any

from tests.cases import each_case
from tests.raw_model import RawModel, calling, finishing

from acorn import Run, Step, current_run, module, tool
from acorn.models import ModelRequest, ModelResponse


class Noter(module[None, str]):
    """Note."""

    max_steps = 9

    def __init__(self, keep: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.keep = keep
        self.keys: list[str] = []

    @tool
    def note(self) -> str:
        """Note."""
        self.keys.append(str(current_run().idempotency_key))
        return "noted"

    def on_step(self, step: Step) -> None:
        self.history[:] = self.history[-self.keep :]


def called_ids(run: Run[Any]) -> list[str]:
    return [str(event.tool_call_id) for event in run.thread if event.type == "tool_call"]


@each_case("missing", ["", None])
@each_case("keep", [1, 2, 3, 99])
def test_generated_call_ids_of_trimmed_history_are_unique(missing: Any, keep: int) -> None:
    model = RawModel([*[calling((missing, "note", "{}"))] * 5, finishing(result="ok")])
    agent = Noter(keep, model=model)
    ids = called_ids(agent.run())
    assert len(set(ids)) == len(ids)
    assert len(set(agent.keys)) == 5


def test_generated_call_id_differs_from_id_that_the_provider_sends_later() -> None:
    first = RawModel([calling(("", "note", "{}")), finishing(result="ok")])
    taken = called_ids(Noter(99, model=first).run())[0]
    model = RawModel([calling(("", "note", "{}")), calling((taken, "note", "{}")), finishing(result="ok")])
    ids = called_ids(Noter(99, model=model).run())
    assert len(set(ids)) == len(ids)


def test_generated_call_ids_of_one_response_are_unique() -> None:
    model = RawModel([calling(("", "note", "{}"), (None, "note", "{}"), ("", "note", "{}")), finishing(result="ok")])
    ids = called_ids(Noter(99, model=model).run())
    assert len(set(ids)) == len(ids)


def test_generated_call_id_that_the_provider_repeats_later_is_replaced() -> None:
    def repeat(request: ModelRequest) -> ModelResponse:
        made = [call["id"] for message in request.messages for call in message.get("tool_calls", ())]
        return finishing(result="ok") if len(made) == 3 else calling((made[-1] if made else None, "note", "{}"))

    ids = called_ids(Noter(99, model=RawModel(repeat)).run())
    assert len(ids) > 3
    assert len(set(ids)) == len(ids)

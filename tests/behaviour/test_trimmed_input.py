"""Tests of inputs that a hook trimmed away: each request contains the input, unless the user replaced it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field
from tests.behaviour.looker import Answer, Looker, Question, look
from tests.cases import case
from tests.loopback import Loopback
from tests.loopback import Request as Sent

from acorn import Step, module
from acorn.testing import ScriptedModel, call, finish

QUESTION = "Where is the oak?"
REMINDER = "Stay on the subject."


def append_reminder(agent: Any, step: Step) -> None:
    agent.history.append({"role": "user", "content": REMINDER})


def keep_last(count: int) -> Callable[[Any, Step], None]:
    def edit(agent: Any, step: Step) -> None:
        if len(agent.history) > count + 1:
            agent.history = agent.history[:1] + agent.history[-count:]

    return edit


def seeds(agent: Any, step: Step) -> None:
    """The hook of the seeds: a reminder, and the system message with the last 40 messages."""
    append_reminder(agent, step)
    if len(agent.history) > 50:
        agent.history = agent.history[:1] + agent.history[-40:]


def asked(edit: Any, steps: int = 30, **settings: Any) -> list[list[Any]]:
    """Return the messages of each request of a run whose hook edits the history."""
    model = ScriptedModel([*(call("look", place=f"place {at}") for at in range(steps)), finish(answer="here")])
    agent = Looker(edit, model=model, **settings)
    assert agent(question=QUESTION).answer == "here"
    return [request.messages for request in model.requests]


def positions(messages: list[Any]) -> list[int]:
    return [at for at, message in enumerate(messages) if QUESTION in str(message.get("content"))]


def test_hook_of_the_seeds_sends_the_question_in_every_request() -> None:
    for at, messages in enumerate(asked(seeds)):
        with case(at):
            assert positions(messages) == [1]
            assert messages[1]["role"] == "user"


def test_provider_receives_the_question_in_every_request() -> None:
    def answer(request: Sent) -> Any:
        count = sum(message["role"] == "assistant" for message in request.body["messages"])
        return finish(answer="here") if len(server.requests) > 30 else call("look", place=f"place {count}")

    with Loopback(answer) as server:
        assert Looker(seeds, model=server.openai())(question=QUESTION).answer == "here"
        for at, body in enumerate(server.bodies()):
            with case(at):
                assert positions(body["messages"]) == [1]
    assert len(server.requests) == 31


def both(*edits: Callable[[Any, Step], None]) -> Callable[[Any, Step], None]:
    def edit(agent: Any, step: Step) -> None:
        for each in edits:
            each(agent, step)

    return edit


def add_context(agent: Any, step: Step) -> None:
    step.add_to_context({"note": REMINDER})


EDITS: dict[str, Callable[[Any, Step], Any]] = {
    "last 4": keep_last(4),
    "last 5": keep_last(5),
    "last 1": keep_last(1),
    "reminder, then last 4": both(append_reminder, keep_last(4)),
    "last 4, then reminder": both(keep_last(4), append_reminder),
    "only the system message": lambda agent, step: setattr(agent, "history", agent.history[:1]),
    "only a reminder": lambda agent, step: setattr(
        agent, "history", [agent.history[0], {"role": "user", "content": REMINDER}]
    ),
    "deleted in place": lambda agent, step: agent.history.__delitem__(slice(1, -2)) if len(agent.history) > 5 else None,
    "popped in place": lambda agent, step: [agent.history.pop(1) for _ in range(len(agent.history) - 3)],
    "no system message left": lambda agent, step: setattr(agent, "history", agent.history[-4:]),
    "copies of messages": lambda agent, step: setattr(
        agent, "history", [dict(each) for each in agent.history[:1] + agent.history[-4:]]
    ),
    "added context": both(add_context, keep_last(4)),
}


def test_trimmed_input_is_put_back_after_the_system_message() -> None:
    for name, edit in EDITS.items():
        for at, messages in enumerate(asked(edit, steps=12)):
            with case(name, at):
                systems = [each["role"] for each in messages].count("system")
                assert positions(messages) == [systems]


def test_trimmed_input_is_put_back_in_other_ways_to_send() -> None:
    for settings in ({"history_format": "thread"}, {"compact_at": 100_000}, {"cache": True}):
        for at, messages in enumerate(asked(seeds, **settings)):
            with case(settings, at):
                assert len(positions(messages)) == 1


def test_history_of_user_stays_as_trimmed() -> None:
    lengths: list[int] = []

    def edit(agent: Any, step: Step) -> None:
        lengths.append(len(agent.history))
        keep_last(4)(agent, step)

    asked(edit, steps=6)
    assert max(lengths) <= 9


def replace_content(agent: Any, step: Step) -> None:
    agent.history[1]["content"] = "Where is the beech?"


def replace_message(agent: Any, step: Step) -> None:
    agent.history[1] = {"role": "user", "content": "Where is the beech?"}


def replace_list(agent: Any, step: Step) -> None:
    agent.history = [agent.history[0], {"role": "user", "content": "Where is the beech?"}, *agent.history[2:]]


def test_input_that_the_user_replaced_stays_replaced() -> None:
    for edit in (replace_content, replace_message, replace_list):
        for at, messages in enumerate(asked(edit, steps=5)[1:]):
            with case(edit.__name__, at):
                assert positions(messages) == []
                assert "beech" in str(messages[1]["content"])


def test_input_that_was_replaced_and_then_trimmed_is_put_back() -> None:
    def edit(agent: Any, step: Step) -> None:
        if step.counter == 1:
            replace_content(agent, step)
        keep_last(4)(agent, step)

    for at, messages in enumerate(asked(edit, steps=10)[1:]):
        with case(at):
            assert messages[1]["role"] == "user"
            assert "oak" in str(messages[1]["content"]) or "beech" in str(messages[1]["content"])


def test_input_that_stays_is_not_repeated() -> None:
    def keep_input(agent: Any, step: Step) -> None:
        if len(agent.history) > 6:
            agent.history = agent.history[:2] + agent.history[-4:]

    for edit in (None, append_reminder, keep_input):
        for at, messages in enumerate(asked(edit, steps=10)):
            with case(edit, at):
                assert positions(messages) == [1]


def test_input_that_moved_is_not_repeated() -> None:
    def move(agent: Any, step: Step) -> None:
        message = next(each for each in agent.history if QUESTION in str(each["content"]))
        agent.history = [each for each in agent.history if each is not message] + [message]

    for at, messages in enumerate(asked(move, steps=5)):
        with case(at):
            assert len(positions(messages)) == 1


def test_trimmed_input_of_continued_conversation_is_put_back() -> None:
    earlier: list[Any] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello, what would you like to know?"},
    ]
    model = ScriptedModel([*(call("look", place=f"place {at}") for at in range(30)), finish(answer="here")])
    agent = Looker(seeds, model=model).using(history=earlier)
    agent(question=QUESTION)
    for at, request in enumerate(model.requests):
        with case(at):
            assert len(positions(request.messages)) == 1


def test_trimmed_input_with_media_is_put_back() -> None:
    from pydantic import BaseModel

    from acorn import Image

    class Seen(BaseModel):
        question: str
        photo: Image

    class Watcher(module[Seen, Answer]):
        """Look."""

        tools = [look]
        max_steps = 40
        on_step = lambda self, step: seeds(self, step)  # noqa: E731

    model = ScriptedModel([*(call("look", place=f"place {at}") for at in range(30)), finish(answer="here")])
    png = b"\x89PNG\r\n\x1a\n" + b"0" * 30
    Watcher(model=model)(question=QUESTION, photo=Image.from_bytes(png, "image/png"))
    for at, request in enumerate(model.requests):
        with case(at):
            assert "image_url" in str(request.messages[1]["content"])
            assert positions(request.messages) == [1]


def test_trimmed_input_of_branch_is_put_back() -> None:
    class Inner(Looker):
        """Look closer."""

        def on_step(self, step: Step) -> None:
            seeds(self, step)

    class Outer(module[Question, Answer]):
        """Delegate."""

        branches = {"inner": Inner}
        max_steps = 4

    model = ScriptedModel(
        [
            call("inner", question="Is it an oak?"),
            *(call("look", place=f"place {at}") for at in range(30)),
            finish(answer="here"),
            finish(answer="there"),
        ]
    )
    assert Outer(model=model)(question=QUESTION).answer == "there"
    for at, request in enumerate(model.requests[1:-1]):
        with case(at):
            text = str([message["content"] for message in request.messages])
            assert text.count("Is it an oak?") >= 1


def test_trimmed_input_of_resumed_run_is_put_back(tmp_path: Path) -> None:
    class Interrupted(Looker):
        stop_at = 20

        def on_step(self, step: Step) -> None:
            seeds(self, step)
            if step.counter == type(self).stop_at:
                type(self).stop_at = 0
                raise KeyboardInterrupt

    def reply(request: Any) -> Any:
        steps.append(1)
        return finish(answer="here") if len(steps) > 32 else call("look", place=f"place {len(steps)}")

    steps: list[int] = []
    first = ScriptedModel(reply)
    with pytest.raises(KeyboardInterrupt):
        Interrupted(model=first, store=tmp_path / "runs.db").using(run_id="one")(question=QUESTION)
    second = ScriptedModel(reply)
    assert Interrupted(model=second, store=tmp_path / "runs.db").resume("one").answer == "here"
    for at, request in enumerate([*first.requests, *second.requests]):
        with case(at):
            assert positions(request.messages) == [1]


def test_input_that_the_user_replaced_stays_replaced_in_branch() -> None:
    class Inner(module[None, Answer]):
        """Look closer."""

    class Outer(Looker):
        """Delegate."""

        branches = {"inner": Inner}

    def replace_at_first(agent: Any, step: Step) -> None:
        if step.counter == 1:
            replace_list(agent, step)

    model = ScriptedModel([call("look", place="a"), call("inner"), finish(answer="here"), finish(answer="there")])
    assert Outer(replace_at_first, model=model)(question=QUESTION).answer == "there"
    for request in model.requests[1:]:
        assert "beech" in str(request.messages)
        assert positions(request.messages) == []


def test_input_of_resumed_run_is_not_repeated_after_its_description_changed(tmp_path: Path) -> None:
    for name in ("before", "after"):

        class Described(module[Any, Answer]):
            """Look."""

            initial_input: Any = [("question", str, Field(description=name))]
            tools = [look]
            max_steps = 9
            store = tmp_path / "runs.db"
            is_interrupted = name == "before"

            def on_step(self, step: Step) -> None:
                if self.is_interrupted:
                    raise KeyboardInterrupt

        model = ScriptedModel(call("look", place="a") if name == "before" else finish(answer="here"))
        agent = Described(model=model)
        if name == "before":
            with pytest.raises(KeyboardInterrupt):
                agent.using(run_id="one")(question=QUESTION)
        else:
            assert agent.resume("one").answer == "here"
            assert positions(model.requests[0].messages) == [1]

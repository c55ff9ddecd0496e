"""Tests of the events for the page: complete, compact and without secrets."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import case

from acorn import StreamChunk
from acorn._inside import Redactor, to_json_text
from acorn.models.assemble import PartialCall
from acorn.web.page import PREVIEW_LIMIT
from acorn.web.page.site import LiveRun
from acorn.web.page.streams import page_events
from acorn.web.serve.responses import ChunkEvents


def chunk(run_id: str, kind: str, text: str) -> dict[str, Any]:
    """Return the event for a chunk of a text, or of a tool call whose index is the length of the text."""
    parts = {"call": PartialCall(len(text), None, text, [text])} if kind == "call" else {kind: text}
    of_run = None if run_id == "root" else run_id
    return {"entry": "chunk", "run_id": run_id, "chunk": StreamChunk(**parts, run_id=of_run, branch=of_run)}


def entry(run_id: str, kind: str) -> dict[str, Any]:
    return {"entry": kind, "run_id": run_id}


RUNS = st.sampled_from(["root", "one"])
EVENTS = st.lists(
    st.one_of(
        st.builds(
            chunk, RUNS, st.sampled_from(["content", "reasoning", "call"]), st.text("ab ", min_size=1, max_size=3)
        ),
        st.builds(entry, RUNS, st.sampled_from(["ModelRequested", "ModelResponded", "ToolStarted", "RunFinished"])),
    ),
    max_size=30,
)


def state(events: Iterable[dict[str, Any]]) -> Any:
    """Return what a page shows after these events: the texts of each run, and the current state of its open turn."""
    said: dict[str, list[Any]] = {}
    for event in events:
        texts = said.setdefault(event["run_id"], [])
        if event["entry"] != "chunk":
            texts.append(event["entry"])
        elif "tool_call" in event:
            texts.append(event["tool_call"])
        else:
            kind = "content" if "content" in event else "reasoning"
            texts.append({kind: event[kind]})
    return {run: list(shown(texts)) for run, texts in said.items()}


def shown(parts: list[Any]) -> Iterator[Any]:
    """Yield the journal entries, and before each of them the joined texts and the last version of each call."""
    coming: dict[Any, Any] = {}
    for part in [*parts, "end"]:
        if isinstance(part, str):
            yield coming
            yield part
            coming = {}
        elif "index" in part:
            coming[part["index"]] = part
        else:
            ((kind, text),) = part.items()
            coming[kind] = coming.get(kind, "") + text


def converted(*batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    encoder = ChunkEvents(Redactor())
    ends = [entry("root", "End"), entry("one", "End")]
    return [event for batch in (*batches, ends) for event in page_events(batch, "root", encoder)]


@given(EVENTS)
def test_merged_events_produce_same_page_state_as_original_events(events: list[dict[str, Any]]) -> None:
    assert len(converted(events)) <= len(converted(*([event] for event in events)))
    assert state(converted(events)) == state(converted(*([event] for event in events)))


@given(EVENTS, st.integers(0, 30))
def test_events_merged_in_two_parts_produce_same_page_state(events: list[dict[str, Any]], at: int) -> None:
    assert state(converted(events[:at], events[at:])) == state(converted(events))


async def no_chunks() -> AsyncGenerator[StreamChunk[Any]]:
    return
    yield StreamChunk()


def test_chunks_of_complete_response_are_dropped() -> None:
    live = LiveRun("root", no_chunks())
    for event in (
        entry("root", "ModelRequested"),
        chunk("root", "content", "so"),
        entry("one", "ModelRequested"),
        chunk("one", "content", "no"),
    ):
        live._add(event)
    assert [event["entry"] for event in live.events_from(0)[0]] == ["ModelRequested", "chunk"] * 2
    for event in (entry("root", "ModelResponded"), chunk("root", "content", "late")):
        live._add(event)
    events, count, _ = live.events_from(0)
    assert [event["entry"] for event in events] == ["ModelRequested", "ModelRequested", "chunk", "ModelResponded"]
    assert events[2]["run_id"] == "one"
    assert count == 5


SECRETS_OF_VALUES: list[str] = ["canary-in-the-mine", 'q"uo\\te\nd', "sk-ABCDEFGH12345678", "ünïcödé-kéy"]


def test_secret_at_any_place_in_value_is_redacted() -> None:
    for frame in ["{}", "\n{}\t", "x {} y {}", "https://a:{}@b", '{{"a": "{}"}}']:
        for secret in SECRETS_OF_VALUES:
            with case(frame, secret):
                redactor = Redactor([] if secret.startswith("sk-") else [secret])
                text = frame.format(secret, secret)
                for value in (text, [text], {"a": {"b": [text]}}, {text: 1}, {"long": "x " * 250 + text}):
                    assert secret not in json.dumps(json.loads(to_json_text(redactor.data(value))), ensure_ascii=False)
                    assert secret not in repr(json.loads(to_json_text(redactor.data(value))))


@given(st.integers(0, PREVIEW_LIMIT + 30), st.sampled_from(["canary-in-the-mine", "c" * 300]))
def test_text_shortened_inside_secret_contains_no_part_of_secret(before: int, secret: str) -> None:
    cut = Redactor([secret]).text("x" * before + secret + "y" * 50, PREVIEW_LIMIT)
    assert not cut.rstrip("…").lstrip("x").startswith(secret[:2])


SECRETS = ("canary-in-the-mine", "two words", "sk-ABCDEFGH12345678", "Bearer abcdefghijkl")


@given(st.sampled_from(SECRETS), st.sampled_from(["", "a ", "x=", "é: "]), st.lists(st.integers(1, 6), max_size=30))
@example("two words", "", [1, 2, 6])
def test_secret_split_across_several_events_is_redacted(secret: str, before: str, cuts: list[int]) -> None:
    encoder = ChunkEvents(Redactor(["canary-in-the-mine", "two words"]))
    text, seen = f"{before}{secret} and more", ""
    pieces: list[str] = []
    for count in cuts:
        pieces, text = [*pieces, text[:count]], text[count:]
    turn = [chunk("root", "content", piece) for piece in (*pieces, text) if piece]
    between = [chunk("root", "reasoning", "so"), chunk("root", "call", "x")]
    for event in (*turn[:-1], *between, *turn[-1:], entry("root", "RunFailed")):
        for each in page_events([event], "root", encoder):
            seen += each.get("content", "")
            hidden = secret.removeprefix("Bearer ")
            assert not any(hidden[at : at + 5] in seen for at in range(len(hidden) - 4)), seen
    assert seen.endswith(" and more")
    assert "***" in seen


def test_beginning_of_secret_in_growing_text_is_redacted() -> None:
    for secret in SECRETS[:3]:
        with case(secret):
            redactor = Redactor(["canary-in-the-mine", "two words"])
            for count in range(5, len(secret)):
                for value in (f"x {secret[:count]}", {"a": [secret[:count]]}, f'{{"query": "{secret[:count]}'):
                    assert secret[:5] not in str(redactor.partial(value))
            assert redactor.partial({"a": "It is so"}) == {"a": "It is so"}


def test_secret_in_tool_call_arguments_is_redacted() -> None:
    assert "slash" not in Redactor(['a"quoted\\slash']).text(json.dumps({"query": 'a"quoted\\slash'}))


def test_any_value_is_converted_to_valid_json_for_browser() -> None:
    deep: Any = "end"
    for _ in range(5000):
        deep = [deep]
    for value in (float("nan"), float("inf"), "\ud800 half", deep, {"a": [1, None, True]}):
        json.loads(to_json_text(Redactor().data([value])), parse_constant=lambda name: pytest.fail(name))

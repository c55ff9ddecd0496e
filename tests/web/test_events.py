"""Tests of the events for the page: complete, compact and without secrets."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import case

from acorn import StreamChunk
from acorn._inside import Redactor, to_json_text
from acorn.web.page import PREVIEW_LIMIT
from acorn.web.page.site import LiveRun
from acorn.web.page.streams import EventTextBuffer, merge_events, page_event

RUNS = st.sampled_from(["root", "one"])
EVENTS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"entry": st.sampled_from(["text", "reasoning"]), "run_id": RUNS, "s": st.text(max_size=5)}
        ),
        st.fixed_dictionaries(
            {"entry": st.just("call"), "run_id": RUNS, "i": st.integers(0, 2), "a": st.text(max_size=5)}
        ),
        st.fixed_dictionaries({"entry": st.just("answer"), "run_id": RUNS, "v": st.integers()}),
        st.fixed_dictionaries(
            {
                "entry": st.sampled_from(["ModelRequested", "ModelResponded", "ToolStarted", "RunFinished"]),
                "run_id": RUNS,
                "n": st.integers(),
            }
        ),
    ),
    max_size=30,
)


def state(events: list[dict[str, Any]]) -> Any:
    """Return what a page shows after these events: the texts of each run, and the current state of its open turn."""
    said: dict[str, list[Any]] = {}
    coming: dict[str, dict[Any, Any]] = {}
    for event in events:
        kind, run = event["entry"], event["run_id"]
        if kind in ("text", "reasoning"):
            coming.setdefault(run, {})[kind] = coming.setdefault(run, {}).get(kind, "") + event["s"]
        elif kind in ("call", "answer"):
            coming.setdefault(run, {})[kind, event.get("i")] = event
        else:
            if kind == "ModelResponded":
                coming.pop(run, None)
            elif run in coming:
                said.setdefault(run, []).append(coming.pop(run))
            said.setdefault(run, []).append(event)
    return said, coming


@given(EVENTS)
def test_merged_events_produce_same_page_state_as_original_events(events: list[dict[str, Any]]) -> None:
    squeezed = merge_events(events)
    assert len(squeezed) <= len(events)
    assert state(squeezed) == state(events)
    assert merge_events(squeezed) == squeezed


@given(EVENTS, st.integers(0, 30))
def test_events_merged_in_two_parts_produce_same_page_state(events: list[dict[str, Any]], at: int) -> None:
    assert state([*merge_events(events[:at]), *merge_events(events[at:])]) == state(events)


async def no_chunks() -> AsyncGenerator[StreamChunk[Any]]:
    return
    yield StreamChunk()


def test_text_event_that_arrives_after_response_event_is_ignored() -> None:
    live = LiveRun("root", no_chunks())
    for kind, run_id in [
        ("ModelRequested", "root"),
        ("text", "root"),
        ("text", "one"),
        ("ModelResponded", "root"),
        ("text", "root"),
    ]:
        live._add({"entry": kind, "run_id": run_id})
    assert [event["entry"] for event in live.events_from(0)[0]] == ["ModelRequested", "text", "ModelResponded"]


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
    redactor, coming = Redactor(["canary-in-the-mine", "two words"]), EventTextBuffer()
    text, seen = f"{before}{secret} and more", ""
    pieces: list[str] = []
    for count in cuts:
        pieces, text = [*pieces, text[:count]], text[count:]
    turn = [{"entry": "text", "run_id": "root", "s": piece} for piece in (*pieces, text) if piece]
    for event in (*turn, {"entry": "RunFailed", "run_id": "root"}):
        for each in coming.release([event], redactor):
            seen += page_event(each, redactor).get("s", "")
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

"""Tests of the conversion of deltas to chunks and to a response, for any split and numbering by a provider."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from pydantic import BaseModel, RootModel
from tests.cases import case

from acorn._formats.schema.shape import Shape, shape_of
from acorn.chunk import AnswerReader, Partial, StreamChunk, Streamer
from acorn.models.assemble import Assembly, as_deltas
from acorn.models.port import CallDelta, Delta, ModelResponse, RawCall
from acorn.record import Run
from acorn.types import ToolResult, Usage

FINISH = "__finish__"
P: Any = Partial


class Answer(BaseModel):
    title: str
    score: int
    body: str = ""


@dataclass
class Place:
    x: int


class Names(RootModel[list[str]]):
    pass


SHAPE = shape_of(Answer, "Agent", "final_output")
TEXT = '{"title": "Acorns", "score": 12, "body": "They grow."}'


def call(arguments: str = "", *, name: str | None = None, id: str | None = None, index: int = 0) -> Delta:
    return Delta(calls=(CallDelta(index, id, name, arguments),))


def finish(text: str, size: int = 4, **first: Any) -> list[Delta]:
    """Return a `__finish__` call as most providers send it: the name first, then the text in pieces."""
    begin = call(name=FINISH, id=first.pop("id", "f1"), **first)
    return [begin, *(call(text[at : at + size], **first) for at in range(0, len(text), size))]


def chunks_of(deltas: Iterable[Delta], shape: Shape = SHAPE) -> list[Any]:
    streamer = Streamer(shape)
    found = [chunk for delta in deltas for chunk in streamer.add(delta)]
    return [*found, streamer.end()[1]]


def response_of(deltas: Iterable[Delta]) -> ModelResponse:
    """Return the response of an assembly, which equals the end of a stream of the same deltas."""
    assembly, streamer = Assembly(), Streamer(SHAPE)
    for delta in deltas:
        assembly.add(delta)
        streamer.add(delta)
    whole, streamed = assembly.response(), streamer.end()[0]
    assert asdict(streamed) == asdict(whole)
    return whole


def calls_of(deltas: Iterable[Delta]) -> list[tuple[str | None, str, str]]:
    return [(made.id, made.name, made.arguments) for made in response_of(deltas).tool_calls]


# Partial answers


def test_partial_answer_grows_with_each_chunk() -> None:
    found = [chunk.partial for chunk in chunks_of(finish(TEXT))]
    assert found[0] is None
    titles = [partial.title for partial in found[1:]]
    assert titles == sorted(titles, key=lambda title: len(title or ""))
    assert found[-1] == P[Answer](title="Acorns", score=12, body="They grow.")
    assert all(type(partial) is P[Answer] for partial in found[1:])


def test_partial_answer_that_no_code_reads_is_not_parsed() -> None:
    found = chunks_of(finish(TEXT))
    (answer,) = {id(chunk._answer): chunk._answer for chunk in found}.values()
    assert answer is not None
    assert answer._parser is None
    assert [chunk.content for chunk in found] == [None] * len(found)
    assert answer._parser is None
    assert found[4].partial.title == "Acorn"
    assert answer._fed == found[4]._count < len(answer._pieces)


def test_answer_is_parsed_only_up_to_chunk_that_code_reads() -> None:
    reader = AnswerReader(['{"title": "a', "b", 'c", "score": 5', "}"], SHAPE)
    assert reader.parse(0) == (None, ())
    assert reader.parse(2)[0].title == "ab"
    assert reader._fed == 2
    assert reader.parse(4)[0].score == 5


def test_partial_answer_of_old_chunk_read_later_is_unchanged() -> None:
    in_order = [chunk.partial for chunk in chunks_of(finish(TEXT))]
    backwards = chunks_of(finish(TEXT))
    assert [chunk.partial for chunk in reversed(backwards)] == in_order[::-1]
    shuffled = chunks_of(finish(TEXT))
    for place in random.Random(0).sample(range(len(shuffled)), len(shuffled)):
        assert shuffled[place].partial == in_order[place]


def test_partial_answer_read_twice_is_same_object() -> None:
    found = chunks_of(finish(TEXT))
    for chunk in [*found, *reversed(found)]:
        assert chunk.partial is chunk.partial
    assert found[-1].partial is found[-2].partial  # The last chunk adds no text.


def test_partial_answer_of_old_chunk_does_not_grow_later() -> None:
    long = '{"body": "%s", "title": "t"}' % ("lorem ipsum " * 200)
    kept = [chunk.partial for chunk in chunks_of(finish(long, size=50))]
    lengths = [len(partial.body or "") for partial in kept[1:]]
    assert lengths == sorted(lengths)
    assert lengths[-1] == 2400
    assert 1000 < lengths[30] < 2000


def test_chunk_lists_completed_fields_in_order_of_completion() -> None:
    told: list[tuple[str, ...]] = []
    for chunk in chunks_of(finish(TEXT, size=1)):
        if not told or told[-1] != chunk.completed:
            told.append(chunk.completed)
    assert told == [(), ("title",), ("title", "score"), ("title", "score", "body")]


def test_old_chunk_lists_only_fields_completed_up_to_that_chunk() -> None:
    found = chunks_of(finish(TEXT))
    assert found[-1].completed == ("title", "score", "body")
    assert found[1].completed == ()


def test_partial_answer_of_single_value_output_is_bare_value() -> None:
    for declared, text, expected, completed in [
        (list[str], '{"result": ["a", "b', ["a", "b"], ()),
        (list[str], '{"result": ["a", "b"]', ["a", "b"], ("result",)),
        (str, '{"result": "ab', "ab", ()),
        (int, '{"result": 12', None, ()),
        (int, '{"result": 12}', 12, ("result",)),
        (bool, '{"result": false}', False, ("result",)),
        (Place, '{"result": {"x": 1', P[Place](x=None), ()),
        (Place, '{"result": {"x": 1 ', P[Place](x=1), ()),
        (Place, '{"result": {"x": 1}', Place(1), ("result",)),
        (list[Answer], '{"result": [{"title": "a', [P[Answer](title="a")], ()),
        (Answer | None, '{"result": {"title": "a', P[Answer](title="a"), ()),
        (dict[str, int], '{"result": {"a": 1, "b": 2', {"a": 1}, ()),
        (Names, '{"result": ["a', P[Names](["a"]), ()),
        (Names, '{"result": ["a"]}', Names(["a"]), ("result",)),
        (str, "{", None, ()),
        (str, "", None, ()),
        (str, "[1", None, ()),
    ]:
        with case(declared):
            last = chunks_of(finish(text), shape_of(declared, "Agent", "final_output"))[-1]
            assert last.partial == expected
            assert type(last.partial) is type(expected)
            assert last.completed == completed


def test_partial_text_answer_of_many_small_deltas_contains_whole_text() -> None:
    shape = shape_of(str, "Agent", "final_output")
    text = '{"result": "' + "x" * 3000
    assert chunks_of(finish(text, size=7), shape)[-1].partial == "x" * 3000


def test_partial_answer_of_output_declared_as_field_list_has_fields() -> None:
    shape = shape_of(["name", ("count", int)], "Agent", "final_output")
    found = chunks_of(finish('{"count": 5, "name": "a'), shape)[-1].partial
    assert (found.name, found.count) == ("a", 5)


def test_agent_without_output_fields_yields_no_partial_answer() -> None:
    shape = shape_of([], "Agent", "final_output")
    assert all(chunk.partial is None for chunk in chunks_of(finish("{}"), shape))


def test_invalid_json_in_finish_call_yields_no_partial_answer_error() -> None:
    for text in ("not json", "[]", "null", '"text"', "\\", '{"title": "\ud83d', "{" * 5000):
        for chunk in chunks_of(finish(text)):
            assert chunk.partial is None or isinstance(chunk.partial, P[Answer])


def test_chunks_of_one_answer_can_be_read_in_several_threads() -> None:
    long = json.dumps({"title": "t", "score": 1, "body": "lorem ipsum " * 300})
    in_order = [chunk.partial for chunk in chunks_of(finish(long))]
    found = chunks_of(finish(long))
    wrong: list[int] = []

    def read(places: Iterable[int]) -> None:
        wrong.extend(place for place in places if found[place].partial != in_order[place])

    halves = range(0, len(found), 2), range(1, len(found), 2)
    threads = [threading.Thread(target=read, args=(places,)) for places in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Other tools


def test_tool_call_chunk_contains_arguments_received_so_far() -> None:
    deltas = [call(name="search", id="c1"), call('{"que'), call('ry": "a'), call('corns"}')]
    found = chunks_of(deltas)
    assert [chunk.tool_call and chunk.tool_call["arguments"] for chunk in found] == [
        "",
        '{"que',
        '{"query": "a',
        '{"query": "acorns"}',
        None,
    ]
    assert found[1].tool_call == {"index": 0, "id": "c1", "name": "search", "arguments": '{"que'}
    assert all(chunk.partial is None and chunk.completed == () for chunk in found)


def test_finish_call_yields_no_tool_call_chunk() -> None:
    assert all(chunk.tool_call is None for chunk in chunks_of(finish(TEXT)))


def test_old_tool_call_chunk_has_name_and_id_received_up_to_that_chunk() -> None:
    deltas = [call(name="sea"), call(name="rch"), call("{", id="c1"), call("}")]
    found = [chunk.tool_call for chunk in chunks_of(deltas)]
    assert found[:4] == [
        {"index": 0, "id": None, "name": "sea", "arguments": ""},
        {"index": 0, "id": None, "name": "search", "arguments": ""},
        {"index": 0, "id": "c1", "name": "search", "arguments": "{"},
        {"index": 0, "id": "c1", "name": "search", "arguments": "{}"},
    ]


def test_finish_tool_name_split_in_deltas_yields_no_tool_call_chunk() -> None:
    deltas = [call(id="f1"), *(call(name=sign) for sign in FINISH), call('{"title": "a"')]
    found = chunks_of(deltas)
    assert all(chunk.tool_call is None for chunk in found)
    assert found[-1].partial.title == "a"
    assert calls_of(deltas) == [("f1", FINISH, '{"title": "a"')]


def test_tool_name_that_is_prefix_of_finish_tool_name_yields_tool_call_chunk() -> None:
    found = chunks_of([call(name="__fin", id="c1"), call("{}")])
    assert [chunk.tool_call and chunk.tool_call["name"] for chunk in found] == ["__fin", None]


def test_tool_result_chunk_contains_only_result() -> None:
    result = ToolResult("c1", "search", output=5)
    chunk = StreamChunk(tool_result=result)
    assert (chunk.tool_result, chunk.partial, chunk.tool_call, chunk.done) == (result, None, None, False)
    assert repr(chunk) == f"StreamChunk(tool_result={result!r})"


# Several calls


def test_interleaved_tool_calls_have_separate_arguments() -> None:
    deltas = [
        call(name="search", id="c1", index=0),
        call(name=FINISH, id="f1", index=1),
        call('{"query', index=0),
        call('{"title": "a', index=1),
        Delta(calls=(CallDelta(0, None, None, '": 1}'), CallDelta(1, None, None, 'b"}'))),
    ]
    assert calls_of(deltas) == [("c1", "search", '{"query": 1}'), ("f1", FINISH, '{"title": "ab"}')]
    found = chunks_of(deltas)
    assert [(chunk.tool_call or {}).get("arguments") for chunk in found] == [
        "",
        None,
        '{"query',
        None,
        '{"query": 1}',
        None,
        None,
    ]
    assert [chunk.partial and chunk.partial.title for chunk in found] == [None, None, None, "a", None, "ab", "ab"]


def test_several_finish_calls_yield_separate_partial_answers() -> None:
    deltas = [*finish('{"title": "first"}', index=0), *finish('{"title": "second"}', index=1, id="f2")]
    found = chunks_of(deltas)
    titles = [chunk.partial.title for chunk in reversed(found) if chunk.partial]
    assert titles[0] == "second"
    assert titles[-1] is None
    assert "first" in titles
    assert not any(title and title.startswith("firsts") for title in titles)
    assert found[-1].partial.title == "second"
    assert len(calls_of(deltas)) == 2


def test_tool_call_indexes_of_chunks_start_at_zero() -> None:
    for start in (0, 1, 7):
        deltas = [
            call("{}", name="search", id="c1", index=start),
            call("{}", name="look", id="c2", index=start + 1),
            call(TEXT, name=FINISH, id="f1", index=start + 2),
        ]
        assert [made[1] for made in calls_of(deltas)] == ["search", "look", FINISH]
        found = chunks_of(deltas)
        assert [chunk.tool_call and chunk.tool_call["index"] for chunk in found] == [0, 1, None, None]
        assert found[-1].partial.score == 12


def test_repeated_call_index_with_new_id_starts_new_tool_call() -> None:
    deltas = [
        call("{", name="search", id="c1"),
        call("}"),
        call('{"a": ', name="search", id="c2"),
        call("1}"),
        *finish(TEXT, id="f1"),
    ]
    assert calls_of(deltas) == [("c1", "search", "{}"), ("c2", "search", '{"a": 1}'), ("f1", FINISH, TEXT)]
    assert chunks_of(deltas)[-1].partial.score == 12


def test_interleaved_tool_calls_with_same_index_are_separated_by_id() -> None:
    deltas = [
        call('{"a"', name="search", id="c1"),
        call('{"b"', name="look", id="c2"),
        call(": 1}", id="c1"),
        call(": 2}", id="c2"),
    ]
    assert calls_of(deltas) == [("c1", "search", '{"a": 1}'), ("c2", "look", '{"b": 2}')]


def test_same_call_id_at_two_indexes_yields_two_tool_calls() -> None:
    deltas = [call("{}", name="search", id="c1", index=0), call("{}", name="look", id="c1", index=1)]
    assert calls_of(deltas) == [("c1", "search", "{}"), ("c1", "look", "{}")]


def test_new_tool_name_after_arguments_without_id_starts_new_tool_call() -> None:
    deltas = [call("{}", name="search"), call("{}", name="look"), call(TEXT, name=FINISH, id="f1")]
    assert calls_of(deltas) == [(None, "search", "{}"), (None, "look", "{}"), ("f1", FINISH, TEXT)]


def test_tool_name_split_and_tool_name_repeated_in_deltas_yield_one_name() -> None:
    in_pieces = [call(name="sea", id="c1"), call(name="rch"), call("{}")]
    letter_by_letter = [call(id="c1"), *(call(name=sign) for sign in "aardvark"), call("{}")]
    again = [call(name="search", id="c1"), call("{", name="search", id="c1"), call("}", name="search", id="c1")]
    again_without_id = [call("{", name="search", id="c1"), call("}", name="search")]
    assert calls_of(in_pieces) == calls_of(again) == calls_of(again_without_id) == [("c1", "search", "{}")]
    assert calls_of(letter_by_letter) == [("c1", "aardvark", "{}")]


def test_late_call_id_is_used_and_empty_call_id_becomes_none() -> None:
    assert calls_of([call(name="search"), call("{", id="c1"), call("}")]) == [("c1", "search", "{}")]
    assert calls_of([call("{}", name="search", id=""), call("", id="")]) == [(None, "search", "{}")]


def test_delta_with_two_parts_of_one_tool_call_yields_one_chunk() -> None:
    deltas = [Delta(calls=(CallDelta(0, "c1", "search", "{"), CallDelta(0, None, None, "}")))]
    found = chunks_of(deltas)
    assert [chunk.tool_call and chunk.tool_call["arguments"] for chunk in found] == ["{}", None]


# The response


def test_empty_deltas_yield_no_chunks() -> None:
    found = chunks_of([Delta(), Delta(stop_reason="stop"), Delta(usage=Usage(5, 6)), Delta(model="m")])
    assert len(found) == 1
    assert found[0].done
    assert response_of([]).stop_reason == "stop"
    assert response_of([]).usage == Usage(requests=1)


def test_text_and_reasoning_are_yielded_as_they_arrive() -> None:
    deltas = [Delta(reasoning="hm"), Delta(content="He"), Delta("llo", "!"), Delta("", "")]
    found = chunks_of(deltas)
    assert [(chunk.content, chunk.reasoning) for chunk in found] == [
        (None, "hm"),
        ("He", None),
        ("llo", "!"),
        (None, None),
    ]
    response = response_of(deltas)
    assert (response.content, response.reasoning, response.refusal) == ("Hello", "hm!", None)


def test_text_in_deltas_with_tool_calls_is_in_response() -> None:
    deltas = [Delta("Let me ", calls=(CallDelta(0, "c1", "search", "{}"),)), Delta("see.")]
    found = chunks_of(deltas)
    assert [chunk.content for chunk in found] == ["Let me ", None, "see.", None]
    assert [chunk.tool_call is not None for chunk in found] == [False, True, False, False]
    response = response_of(deltas)
    assert (response.content, response.stop_reason) == ("Let me see.", "tool_calls")


def test_only_last_chunk_has_done_true() -> None:
    for deltas in (finish(TEXT), [Delta("text")], [call("{}", name="search")], [], [*finish(TEXT), Delta("after")]):
        found = chunks_of(deltas)
        assert [chunk.done for chunk in found] == [False] * (len(found) - 1) + [True]
    assert chunks_of([*finish(TEXT), Delta("after")])[-1].partial.score == 12


def test_usage_and_cost_after_stop_reason_are_in_response() -> None:
    deltas = [Delta("a", stop_reason="length"), Delta(usage=Usage(1, 2, requests=1)), Delta(cost=0.5, model="m")]
    response = response_of([*deltas, Delta(usage=Usage(3, 4, requests=1))])
    assert response.stop_reason == "length"
    assert response.usage == Usage(3, 4, requests=1)
    assert (response.cost, response.model) == (0.5, "m")


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([Delta("a")], "stop"),
        ([call("{}", name="search")], "tool_calls"),
        ([call("{}", name="search"), Delta(stop_reason="stop")], "stop"),
        ([Delta(stop_reason="content_filter"), Delta()], "content_filter"),
    ],
)
def test_missing_stop_reason_is_derived_from_text_and_tool_calls(deltas: list[Delta], expected: str) -> None:
    assert response_of(deltas).stop_reason == expected


def test_refusal_and_extra_fields_of_deltas_are_in_response() -> None:
    deltas = [Delta(refusal="I will "), Delta(refusal="not."), Delta(extra={"a": 1}), Delta(extra={"b": 2})]
    response = response_of(deltas)
    assert (response.refusal, response.extra, response.content) == ("I will not.", {"a": 1, "b": 2}, "")


def test_character_split_in_two_deltas_is_yielded_when_complete() -> None:
    deltas = [
        Delta("a\ud83d", reasoning="\ud83d"),
        Delta("\ude00b", reasoning="\ude00"),
        call('{"title": "\ud83d', name=FINISH, index=0),
        call('{"a": "\ud83d', name="search", index=1),
        call('\ude00"}', index=0),
        call('\ude01"}', index=1),
    ]
    response, found = response_of(deltas), chunks_of(deltas)
    assert (response.content, response.reasoning) == ("a😀b", "😀")
    assert [made.arguments for made in response.tool_calls] == ['{"title": "😀"}', '{"a": "😁"}']
    assert [chunk.content for chunk in found[:2]] == ["a", "😀b"]
    assert [chunk.partial.title for chunk in found if chunk.partial] == ["", "😀", "😀"]
    assert [chunk.tool_call["arguments"] for chunk in found if chunk.tool_call] == ['{"a": "', '{"a": "😁"}']


def test_lone_surrogate_is_in_response_unchanged() -> None:
    pieces = ["a\ud83d", "b", "\ude00c", "\ud83d"]
    assert response_of([Delta(piece) for piece in pieces]).content == "a\ud83db\ude00c\ud83d"
    assert calls_of([call(piece, name="search") for piece in pieces]) == [(None, "search", "a\ud83db\ude00c\ud83d")]


def test_markup_in_text_is_yielded_as_text() -> None:
    found = chunks_of([Delta("<output><title>"), Delta("a</title></output>")])
    assert [chunk.content for chunk in found] == ["<output><title>", "a</title></output>", None]
    assert all(chunk.partial is None for chunk in found)


def test_response_converted_to_deltas_and_back_is_equal() -> None:
    response = ModelResponse(
        content="text",
        tool_calls=[RawCall("c1", "search", "{}"), RawCall(None, FINISH, TEXT), RawCall("c1", "search", "")],
        stop_reason="tool_calls",
        usage=Usage(1, 2, requests=1),
        cost=0.25,
        model="m",
        reasoning="hm",
        refusal="no",
        extra={"a": 1},
        attempts=3,
        waits=(0.5, 1.0),
    )
    assert vars(response_of(as_deltas(response))) == vars(response)
    assert vars(response_of(as_deltas(ModelResponse()))) == vars(ModelResponse())
    assert chunks_of(as_deltas(response))[-1].partial.score == 12


def test_randomly_split_tool_calls_are_joined_to_original_calls() -> None:
    rng = random.Random(0)
    for _ in range(200):
        names = rng.choices(["search", "look", FINISH], k=rng.randint(1, 4))
        start, same_index = rng.choice([0, 1]), rng.random() < 0.3
        texts = [json.dumps({"title": "x" * rng.randint(0, 9), "score": 1}) for _ in names]
        queues: list[list[Delta]] = []
        for place, (name, text) in enumerate(zip(names, texts, strict=True)):
            index, size = start if same_index else start + place, rng.randint(1, 9)
            parts = [call(text[at : at + size], index=index) for at in range(0, len(text), size)]
            queues.append([call(name=name, id=f"c{place}", index=index), *parts])
        deltas: list[Delta] = [queue.pop(0) for queue in queues] if not same_index else []
        while queues := [queue for queue in queues if queue]:
            deltas.append((queues[0] if same_index else rng.choice(queues)).pop(0))
        expected = [(f"c{place}", name, text) for place, (name, text) in enumerate(zip(names, texts, strict=True))]
        assert calls_of(deltas) == expected
        partials = [chunk.partial for chunk in chunks_of(deltas) if chunk.done]
        written = [text for name, text in zip(names, texts, strict=True) if name == FINISH]
        assert [partial and partial.title for partial in partials] == [
            json.loads(written[-1])["title"] if written else None
        ]


def test_tool_call_delta_that_also_contains_text_is_joined() -> None:
    parts: list[dict[str, Any]] = [
        {"content": "text"},
        {"reasoning": "hm"},
        {"stop_reason": "length"},
        {"usage": Usage(1, 2, requests=1)},
        {"cost": 0.0},
        {"model": "m"},
        {"refusal": ""},
        {"extra": {"a": 1}},
    ]
    for beside in parts:
        with case(beside):
            first, *pieces = finish(TEXT)
            last = pieces[-1]
            pieces[-1] = Delta(calls=last.calls, **beside)
            response = response_of([first, *pieces])
            assert vars(response).items() >= beside.items()
            assert response.tool_calls == [RawCall("f1", FINISH, TEXT)]
            assert chunks_of([first, *pieces])[-1].partial.score == 12


def test_incomplete_finish_tool_name_followed_by_empty_delta_yields_no_tool_call() -> None:
    deltas = [call(name="__fin", id="f1"), call(""), call(name="ish__"), call(TEXT)]
    first, *others = chunks_of(deltas)
    assert first.partial is None
    assert all(chunk.tool_call is None for chunk in [first, *others])
    assert others[-1].partial.score == 12


def test_chunk_repr_contains_only_fields_that_are_set() -> None:
    chunks = chunks_of([Delta(content="Hm."), Delta(reasoning="Why?"), call('{"q": 1', name="look", id="c1")])
    shown = list(map(repr, chunks))
    assert shown[:2] == ["StreamChunk(content='Hm.')", "StreamChunk(reasoning='Why?')"]
    assert shown[2] == ("StreamChunk(tool_call={'index': 0, 'id': 'c1', 'name': 'look', 'arguments': '{\"q\": 1'})")
    assert shown[3] == "StreamChunk(done=True)"
    answer = chunks_of([call('{"title": "Acorns", "sc', name=FINISH, id="f1")])
    assert repr(answer[0]) == f"StreamChunk(partial={answer[0].partial!r}, completed=('title',))"
    assert "title='Acorns'" in repr(answer[0])
    assert repr(answer[-1]) == f"StreamChunk(partial={answer[0].partial!r}, completed=('title',), done=True)"


def test_chunk_repr_of_result_with_failing_eq_method_does_not_raise() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError("not comparable")

        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            return "odd"

    run: Run[Any] = Run("r1", Answer(title="t", score=1))
    chunk: StreamChunk[Any] = StreamChunk(result=Odd(), run=run, branch="outer/inner", run_id="r2")
    assert repr(chunk) == "StreamChunk(branch='outer/inner', run_id='r2', result=odd, run=<Run r1>)"
    assert repr(StreamChunk()) == "StreamChunk()"

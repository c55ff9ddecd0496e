"""Small programs whose model answers with malformed replies: acorn corrects the model or raises a clear error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel
from tests.cases import case
from tests.loopback import EVENTS, Fault, Loopback, openai_completion, openai_stream
from tests.provider_rules import assert_complete, assert_request_valid
from tests.raw_model import RawModel

from acorn import LimitError, ModelError, ParseError, module, tool
from acorn.models.port import ModelResponse, RawCall
from acorn.testing import Reply, call, finish

CALLED: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    CALLED.clear()


class Answer(BaseModel):
    name: str
    count: int = 1
    tags: list[str] = []


@tool
def look(place: str, times: int = 1) -> str:
    """Look."""
    CALLED.append((place, times))
    return f"seen {place}"


class Looker(module[Any, Answer]):
    """Look around, then answer."""

    initial_input: Any = []
    tools = [look]
    max_steps = 4


class Single(module[Any, Answer]):
    """Answer."""

    initial_input: Any = []


def made(name: Any, arguments: str, call_id: Any = "a", **fields: Any) -> ModelResponse:
    return ModelResponse("", [RawCall(call_id, name, arguments)], "tool_calls", **fields)


def done(name: str = "fine") -> ModelResponse:
    return made("__finish__", json.dumps({"name": name}), "the_end")


def ran(kind: type[module[Any, Any]], *responses: ModelResponse, **settings: Any) -> tuple[Any, RawModel]:
    """Return the record and the model of a run, after a check of all requests and of the history."""
    model = RawModel(list(responses))
    run = kind(model=model, **settings).run()
    for request in model.requests:
        assert_request_valid(request)
    assert_complete(run.history)
    assert len(model.requests) == len(responses)
    return run, model


def last(model: RawModel) -> str:
    return str(model.requests[-1].messages[-1]["content"])


DEEP = "[" * 500 + "]" * 500

BAD_FINISH: dict[str, str] = {
    "no JSON": "name: fine",
    "empty text": "",
    "blank text": "  ",
    "null": "null",
    "a list": '[{"name": "fine"}]',
    "a string": '"fine"',
    "a number": "7",
    "true": "true",
    "cut off in a key": '{"na',
    "cut off in a value": '{"name": "fi',
    "cut off after a comma": '{"name": "fine",',
    "cut off in a list": '{"name": "fine", "tags": ["a"',
    "trailing comma": '{"name": "fine",}',
    "single quotes": "{'name': 'fine'}",
    "unquoted key": '{name: "fine"}',
    "two objects": '{"name": "a"}{"name": "b"}',
    "text after the object": '{"name": "fine"} That is all.',
    "code fence": '```json\n{"name": "fine"}\n```',
    "missing field": '{"count": 2}',
    "null field": '{"name": null}',
    "wrong type": '{"name": "fine", "count": "many"}',
    "wrong item": '{"name": "fine", "tags": ["a", 5]}',
    "object for text": '{"name": {"first": "a"}}',
    "list for text": '{"name": ["fine"]}',
    "text for list": '{"name": "fine", "tags": "a, b"}',
    "NaN": '{"name": "fine", "count": NaN}',
    "Infinity": '{"name": "fine", "count": Infinity}',
    "fraction": '{"name": "fine", "count": 1.5}',
    "huge number": '{"name": "fine", "count": 1e400}',
    "deep nesting": f'{{"name": "fine", "tags": {DEEP}}}',
    "very deep nesting": f'{{"name": "fine", "tags": {"[" * 100_000}}}',
    "line break in text": '{"name": "fi\nne"',
    "byte order mark": '\ufeff{"name": "fine"',
    "NUL": '{"name": "a\x00b"',
    "half an escape": '{"name": "\\u12"}',
    "lone surrogate escaped in a key": '{"\\ud800": 1}',
    "misspelled field": '{"nam": "fine"}',
    "field in other case": '{"Name": "fine"}',
    "wrapped in result": '{"result": {"name": "fine"}}',
    "wrapped in output": '{"output": {"name": "fine"}}',
    "schema instead of data": '{"type": "object", "properties": {"name": {"type": "string"}}}',
}


def test_malformed_answer_is_corrected_by_model() -> None:
    for kind in (Looker, Single):
        for name, text in BAD_FINISH.items():
            with case(kind.__name__, name):
                run, model = ran(kind, made("__finish__", text), done())
                assert run.output == Answer(name="fine")
                assert last(model).startswith('<error type="validation">')
                assert len(last(model)) < 5000


def test_malformed_answers_without_end_are_parse_error_with_the_text() -> None:
    for name, text in BAD_FINISH.items():
        with case(name):
            model = RawModel([made("__finish__", text)] * 3)
            with pytest.raises(ParseError) as caught:
                Single(model=model, parse_retries=2)()
            assert caught.value.attempts == 3
            assert caught.value.errors
            assert len(str(caught.value)) < 3000
            assert len(model.requests) == 3


BAD_ARGUMENTS: dict[str, str] = {
    name: text.replace("name", "place")
    for name, text in BAD_FINISH.items()
    if "tags" not in text and "count" not in text
}


def test_malformed_arguments_are_tool_error_and_function_is_not_called() -> None:
    for name, text in BAD_ARGUMENTS.items():
        with case(name):
            run, model = ran(Looker, made("look", text), done())
            assert CALLED == []
            assert last(model).startswith("Tool error: ")
            assert len(last(model)) < 3000
            assert run.output == Answer(name="fine")
            assert "missing" in last(model) or "JSON" in last(model) or "`place`" in last(model)


GOOD_ARGUMENTS: dict[str, tuple[str, Any]] = {
    "number as text": ('{"place": "a", "times": "2"}', ("a", 2)),
    "integral float": ('{"place": "a", "times": 2.0}', ("a", 2)),
    "blanks around": ('  {"place": "a"}  \n', ("a", 1)),
    "repeated key": ('{"place": "b", "place": "a"}', ("a", 1)),
    "escapes": ('{"place": "\\u0061"}', ("a", 1)),
    "emoji as surrogate pair": ('{"place": "\\ud83c\\udf30"}', ("🌰", 1)),
}


def test_unusual_but_valid_arguments_are_accepted() -> None:
    for name, (text, expected) in GOOD_ARGUMENTS.items():
        with case(name):
            CALLED.clear()
            ran(Looker, made("look", text), done())
            assert [expected] == CALLED


def test_additional_argument_does_not_end_the_run() -> None:
    run, _ = ran(Looker, made("look", '{"place": "a", "colour": "red"}'), done())
    assert run.output == Answer(name="fine")


def test_lone_surrogates_in_reply_never_reach_the_provider() -> None:
    for name, response in {
        "in content": ModelResponse("a\ud800", [RawCall("x", "look", '{"place": "a"}')], "tool_calls"),
        "in arguments": made("look", '{"place": "a\ud800"}'),
        "escaped in arguments": made("look", '{"place": "a\\ud800"}'),
        "in the id": made("look", '{"place": "a"}', "x\ud800"),
        "in the name": made("look\ud800", '{"place": "a"}'),
    }.items():
        with case(name):
            run, model = ran(Looker, response, done())
            assert run.output == Answer(name="fine")
            json.dumps(model.requests[-1].messages, ensure_ascii=False).encode()


NAMES = [
    "",
    " ",
    "lookup",
    "LOOK",
    "look ",
    "functions.look",
    "finish",
    "__finish",
    "__FINISH__",
    "a" * 300,
    "a b",
    "é",
    "<b>",
]


def test_unknown_tool_name_is_tool_error_that_lists_the_tools() -> None:
    for name in NAMES:
        with case(name):
            run, model = ran(Looker, made(name, '{"place": "a"}'), done())
            assert CALLED == []
            assert run.output == Answer(name="fine")
            assert last(model).startswith("Tool error: ")
            assert "`look`" in last(model)
            assert "`__finish__`" in last(model)
            assert len(last(model)) < 1000


IDS: dict[str, list[Any]] = {
    "no ids": [None, None],
    "empty ids": ["", ""],
    "repeated ids": ["a", "a"],
    "blank ids": [" ", " "],
    "long ids": ["a" * 500, "b" * 500],
    "ids with line breaks": ["a\nb", "c\nd"],
    "id of the answer": ["the_end", "the_end"],
    "ids like generated ones": ["call_1_0", "call_1_1"],
}


def test_missing_and_repeated_ids_get_one_result_each() -> None:
    for name, ids in IDS.items():
        with case(name):
            CALLED.clear()
            response = ModelResponse(
                "",
                [RawCall(each, "look", json.dumps({"place": at})) for each, at in zip(ids, "ab", strict=True)],
                "tool_calls",
            )
            _, model = ran(Looker, response, response, done())
            assert len(CALLED) == 4
            results = [message for message in model.requests[-1].messages if message["role"] == "tool"]
            assert [message["content"] for message in results] == ["seen a", "seen b"] * 2
            assert len({message["tool_call_id"] for message in results[:2]}) == 2


def test_numbers_as_call_ids_become_texts() -> None:
    numbers: Any
    for numbers in [(5,), (6, 7)]:
        with case(numbers):
            calls = [RawCall(number, "look", '{"place": "a"}') for number in numbers]
            run, _ = ran(Looker, ModelResponse("", calls, "tool_calls"), done())
            turn, *results = run.history[2:-2]
            ids = [str(number) for number in numbers]
            assert [each["id"] for each in turn["tool_calls"]] == ids
            assert [each["tool_call_id"] for each in results] == ids


def several(*texts: str, others: int = 0) -> ModelResponse:
    calls = [RawCall(f"f{at}", "__finish__", text) for at, text in enumerate(texts)]
    return ModelResponse(
        "", [*calls, *(RawCall(f"l{at}", "look", '{"place": "a"}') for at in range(others))], "tool_calls"
    )


def test_first_valid_answer_of_several_counts() -> None:
    for name, (response, expected) in {
        "two valid": (several('{"name": "a"}', '{"name": "b"}'), "a"),
        "first malformed": (several("{", '{"name": "b"}'), "b"),
        "first invalid": (several('{"count": 1}', '{"name": "b"}'), "b"),
        "all the same": (several('{"name": "a"}', '{"name": "a"}', '{"name": "a"}'), "a"),
        "with other calls": (several('{"name": "a"}', others=2), "a"),
    }.items():
        for kind in (Looker, Single):
            with case(name, kind.__name__):
                run, _ = ran(kind, response)
                assert run.output.name == expected
                assert CALLED == []


def test_calls_next_to_invalid_answer_are_skipped() -> None:
    run, model = ran(Looker, several("{", others=2), done())
    assert CALLED == []
    assert run.output.name == "fine"
    results = [str(each["content"]) for each in model.requests[-1].messages if each["role"] == "tool"]
    assert len(results) == 3


EMPTY: dict[str, ModelResponse] = {
    "empty": ModelResponse("", [], "stop"),
    "blank": ModelResponse("  \n ", [], "stop"),
    "text": ModelResponse("I think about it.", [], "stop"),
    "JSON in text": ModelResponse("The answer comes.", [], "stop"),
    "no stop reason": ModelResponse("hm", [], ""),
    "unknown stop reason": ModelResponse("hm", [], "because"),
    "tool_calls without calls": ModelResponse("hm", [], "tool_calls"),
    "cut off text": ModelResponse("I think abo", [], "length"),
    "only reasoning": ModelResponse("", [], "stop", reasoning="Let me think."),
}


def test_reply_without_call_is_reminded_in_loop_and_corrected_in_single_turn() -> None:
    for kind in (Looker, Single):
        for name, response in EMPTY.items():
            with case(kind.__name__, name):
                run, model = ran(kind, response, done())
                assert run.output == Answer(name="fine")
                assert model.requests[-1].messages[-1]["role"] == "user"


def test_empty_replies_without_end_end_the_run() -> None:
    with pytest.raises(ParseError):
        Single(model=RawModel([EMPTY["empty"]] * 10))()
    model = RawModel(lambda request: done() if request.forced_tool else EMPTY["empty"])
    run = Looker(model=model, loop_guard=None).run()
    assert (run.stop_reason, len(model.requests)) == ("forced", 5)


def test_refusal_is_model_error_with_its_text() -> None:
    for kind in (Looker, Single):
        for response in (
            ModelResponse("", [], "stop", refusal="I will not do that."),
            ModelResponse("I will not do that.", [], "content_filter"),
        ):
            with case(kind.__name__, response.stop_reason), pytest.raises(ModelError, match="I will not do that"):
                kind(model=RawModel([response] * 4))()


def test_answer_cut_off_at_token_limit_says_so() -> None:
    for text in ('{"name": "fi', '{"name": "fine", "tags": ["a",', ""):
        for kind in (Looker, Single):
            with case(text, kind.__name__):
                cut = ModelResponse("", [RawCall("a", "__finish__", text)], "length")
                run, model = ran(kind, cut, done())
                assert run.output == Answer(name="fine")
                assert "cut off" in last(model)


def test_arguments_cut_off_at_token_limit_are_tool_error_that_says_so() -> None:
    cut = ModelResponse("", [RawCall("a", "look", '{"place": "ro')], "length")
    _, model = ran(Looker, cut, done())
    assert CALLED == []
    assert last(model).startswith("Tool error: ")
    assert "cut off" in last(model)


def test_complete_answer_at_token_limit_counts() -> None:
    response = ModelResponse("", [RawCall("a", "__finish__", '{"name": "fine"}')], "length")
    run, _ = ran(Looker, response)
    assert run.output == Answer(name="fine")


def test_huge_answers_are_accepted() -> None:
    many = json.dumps({"name": "x" * 300_000, "tags": ["a"] * 20_000})
    run, _ = ran(Single, made("__finish__", many))
    assert len(run.output.name) == 300_000
    assert len(run.output.tags) == 20_000


def test_many_calls_in_one_response_are_all_answered() -> None:
    calls = [RawCall(f"c{at}", "look", json.dumps({"place": str(at)})) for at in range(200)]
    _, model = ran(Looker, ModelResponse("", calls, "tool_calls"), done())
    assert len(CALLED) == 200
    results = [str(each["content"]) for each in model.requests[-1].messages if each["role"] == "tool"]
    assert results == [f"seen {at}" for at in range(200)]


# Through HTTP


BODIES: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"<html>502</html>",
    "cut off": b'{"id": "x", "choices": [{"mess',
    "null": b"null",
    "a list": b"[]",
    "a string": b'"hello"',
    "no choices": b'{"id": "x"}',
    "empty choices": b'{"choices": []}',
    "choices null": b'{"choices": null}',
    "no message": b'{"choices": [{"index": 0}]}',
    "message null": b'{"choices": [{"message": null}]}',
    "message a text": b'{"choices": [{"message": "hi"}]}',
    "not UTF-8": b'{"choices": "\xff\xfe"}',
    "NaN": b'{"choices": NaN}',
    "error with status 200": b'{"error": {"message": "the model is overloaded"}}',
}


def test_unreadable_body_is_model_error_within_retries() -> None:
    for name, body in BODIES.items():
        for is_streamed in (False, True):
            with case(name, is_streamed), Loopback([Fault(body=body)] * 3) as server:
                agent = Single(model=server.openai(num_retries=1))
                with pytest.raises(ModelError) as caught:
                    list(agent.stream()) if is_streamed else agent()
                assert len(str(caught.value)) < 1500
                assert "sk-test" not in str(caught.value)
                assert len(server.requests) <= 2


def completion(change: Any) -> Fault:
    """Return a valid completion that `change` has damaged."""
    body = openai_completion(finish(name="fine"), {"model": "m"}, 1)
    change(body)
    return Fault(body=json.dumps(body).encode())


def _message(body: Any) -> Any:
    return body["choices"][0]["message"]


HARMLESS: dict[str, Any] = {
    "no id": lambda body: body.pop("id"),
    "no model": lambda body: body.pop("model"),
    "no usage": lambda body: body.pop("usage"),
    "usage null": lambda body: body.update(usage=None),
    "no finish reason": lambda body: body["choices"][0].pop("finish_reason"),
    "finish reason null": lambda body: body["choices"][0].update(finish_reason=None),
    "finish reason stop next to a call": lambda body: body["choices"][0].update(finish_reason="stop"),
    "unknown fields": lambda body: body.update(extra={"a": [1]}, system_fingerprint=5),
    "no role": lambda body: _message(body).pop("role"),
    "no content": lambda body: _message(body).pop("content", None),
    "content as a list": lambda body: _message(body).update(content=[{"type": "text", "text": "hi"}]),
    "content as an empty list": lambda body: _message(body).update(content=[]),
    "call without id": lambda body: _message(body)["tool_calls"][0].pop("id"),
    "call without type": lambda body: _message(body)["tool_calls"][0].pop("type"),
    "arguments as an object": lambda body: _message(body)["tool_calls"][0]["function"].update(
        arguments={"name": "fine"}
    ),
    "several choices": lambda body: body["choices"].append(body["choices"][0]),
    "unknown message fields": lambda body: _message(body).update(annotations=[], audio=None, weird={"a": 1}),
    "legacy function_call null": lambda body: _message(body).update(function_call=None),
}


def test_harmless_deviation_of_a_provider_is_accepted() -> None:
    for name, change in HARMLESS.items():
        with case(name), Loopback([completion(change)]) as server:
            assert Single(model=server.openai(num_retries=0))() == Answer(name="fine")


HARMFUL: dict[str, Any] = {
    "tool_calls null": lambda body: _message(body).update(tool_calls=None),
    "tool_calls empty": lambda body: _message(body).update(tool_calls=[]),
    "call without arguments": lambda body: _message(body)["tool_calls"][0]["function"].pop("arguments"),
    "arguments null": lambda body: _message(body)["tool_calls"][0]["function"].update(arguments=None),
}


def test_reply_without_usable_call_is_corrected() -> None:
    for name, change in HARMFUL.items():
        with case(name), Loopback([completion(change), finish(name="fine")]) as server:
            assert Single(model=server.openai(num_retries=0))() == Answer(name="fine")
            assert len(server.requests) == 2


def stream(change: Any) -> Fault:
    text = openai_stream(finish(name="fine"), {"model": "m"}, 1, 4).decode()
    return Fault(body=change(text).encode("utf-8", "surrogatepass"), content_type=EVENTS)


STREAMS: dict[str, Any] = {
    "comments": lambda text: ": ping\n\n" + text.replace("\n\n", "\n\n: ping\n\n"),
    "no space after data": lambda text: text.replace("data: ", "data:"),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "empty lines": lambda text: text.replace("\n\n", "\n\n\n\n"),
    "event names": lambda text: text.replace("data: ", "event: message\ndata: "),
    "no DONE": lambda text: text.replace("data: [DONE]\n\n", ""),
    "empty choices": lambda text: 'data: {"choices": []}\n\n' + text,
    "null delta": lambda text: 'data: {"choices": [{"index": 0, "delta": null}]}\n\n' + text,
}


def test_harmless_deviation_of_a_stream_is_accepted() -> None:
    for name, change in STREAMS.items():
        with case(name), Loopback([stream(change)]) as server:
            chunks = list(Single(model=server.openai(num_retries=0)).stream())
            assert chunks[-1].result == Answer(name="fine")


BROKEN_STREAMS: dict[str, Any] = {
    "empty": lambda text: "",
    "only comments": lambda text: ": ping\n\n: ping\n\n",
    "no JSON": lambda text: "data: hello\n\n" + text,
    "cut off event": lambda text: text[: len(text) // 2],
    "error event": lambda text: 'data: {"error": {"message": "the model is overloaded"}}\n\n',
    "HTML": lambda text: "<html>502</html>",
}


def test_broken_stream_is_model_error() -> None:
    for name, change in BROKEN_STREAMS.items():
        with case(name), Loopback([stream(change)] * 2) as server:
            with pytest.raises(ModelError) as caught:
                list(Single(model=server.openai(num_retries=1)).stream())
            assert len(str(caught.value)) < 1500


# Through the XML fallback


def fallen_back(*texts: str, kind: Any = Answer, **settings: Any) -> Any:
    """Return the output of a run whose model cannot be forced and answers in text."""

    class Agent(module):
        """Answer."""

        initial_input: Any = []
        final_output = kind
        tools = [look]
        max_steps = 1

    responses = [made("look", '{"place": "a"}'), ModelResponse("Hm.", [], "stop")]
    model = RawModel([*responses, *(ModelResponse(text, [], "stop") for text in texts)], forces=False)
    output = Agent(model=model, **settings)()
    assert len(model.requests) == 2 + len(texts)
    return output


LENIENT: dict[str, tuple[str, Answer]] = {
    "plain": ("<output><name>fine</name></output>", Answer(name="fine")),
    "prose around": ("Sure!\n<output><name>fine</name></output>\nBye.", Answer(name="fine")),
    "code fence": ("```xml\n<output><name>fine</name></output>\n```", Answer(name="fine")),
    "declaration": ('<?xml version="1.0"?>\n<output><name>fine</name></output>', Answer(name="fine")),
    "attributes of the skeleton": ('<output><name description="The name">fine</name></output>', Answer(name="fine")),
    "ampersand": ("<output><name>A & B</name></output>", Answer(name="A & B")),
    "less than": ("<output><name>a < b</name></output>", Answer(name="a < b")),
    "undefined entity": ("<output><name>a&nbsp;b</name></output>", Answer(name="a&nbsp;b")),
    "missing end tag": ("<output><name>fine</name>", Answer(name="fine")),
    "missing end tags": ("<output><name>fine", Answer(name="fine")),
    "CDATA": ("<output><name><![CDATA[a <b> c]]></name></output>", Answer(name="a <b> c")),
    "comment": ("<output><!-- so --><name>fine</name></output>", Answer(name="fine")),
    "other item tags": (
        "<output><name>a</name><tags><tag>x</tag><tag>y</tag></tags></output>",
        Answer(name="a", tags=["x", "y"]),
    ),
    "empty list": ("<output><name>a</name><tags/></output>", Answer(name="a")),
    "last of two": ("<output><name>a</name></output> or <output><name>b</name></output>", Answer(name="b")),
    "number with blanks": ("<output><name>a</name><count> 5 </count></output>", Answer(name="a", count=5)),
    "fence quoted, then the answer": (
        "The form is\n```xml\n<output><name>...</name></output>\n```\nMy answer:\n<output><name>b</name></output>",
        Answer(name="b"),
    ),
}


def test_lenient_forms_of_xml_answers_are_read() -> None:
    for name, (text, expected) in LENIENT.items():
        with case(name):
            assert fallen_back(text) == expected


BAD_XML: dict[str, str] = {
    "no element": "I do not know.",
    "empty": "",
    "other root": "<answer><name>fine</name></answer>",
    "missing field": "<output><count>5</count></output>",
    "wrong type": "<output><name>a</name><count>many</count></output>",
    "DTD": '<!DOCTYPE x [<!ENTITY a "b">]><output><name>&a;</name></output>',
    "too deep": "<output>" + "<a>" * 200 + "</a>" * 200 + "</output>",
    "too large": "<output><name>" + "x" * 1_200_000 + "</name></output>",
    "JSON": '{"name": "fine"}',
    "empty element": "<output/>",
}


def test_malformed_xml_answer_is_corrected_by_model() -> None:
    for name, text in BAD_XML.items():
        with case(name):
            assert fallen_back(text, "<output><name>fine</name></output>") == Answer(name="fine")


def test_plain_outputs_are_read_from_xml_answers() -> None:
    for name, (kind, text, expected) in {
        "str in result": (str, "<output><result>hi</result></output>", "hi"),
        "int": (int, "<output><result>5</result></output>", 5),
        "list": (list[str], "<output><result><item>a</item></result></output>", ["a"]),
        "bool": (bool, "<output><result>true</result></output>", True),
        "None": (int | None, "<output><result>null</result></output>", None),
    }.items():
        with case(name):
            assert fallen_back(text, kind=kind) == expected


def test_finish_call_counts_in_fallback_too() -> None:
    model = RawModel([made("look", '{"place": "a"}'), ModelResponse("Hm.", [], "stop"), done()], forces=False)
    assert Looker(model=model, max_steps=1)() == Answer(name="fine")


def test_looping_malformed_calls_end_with_forced_answer_or_limit() -> None:
    model = RawModel(lambda request: done() if request.forced_tool else made("look", "{"))
    run = Looker(model=model, max_steps=30, loop_guard="force").run()
    assert run.stop_reason == "loop"
    assert len(model.requests) < 12
    model = RawModel(lambda request: made("look", "{"))
    with pytest.raises((ParseError, LimitError, ModelError)):
        Looker(model=model, max_steps=3).run()
    assert len(model.requests) < 12


def test_reply_with_text_next_to_answer_counts() -> None:
    response = ModelResponse("Here you are.", [RawCall("a", "__finish__", '{"name": "fine"}')], "tool_calls")
    run, _ = ran(Looker, response)
    assert run.output == Answer(name="fine")
    with Loopback([Reply("Let me see.") & call("look", place="a"), finish(name="fine")]) as server:
        assert Looker(model=server.anthropic())() == Answer(name="fine")

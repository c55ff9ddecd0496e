"""Tests of the responses of the service: outputs, streams, failures with their status, paused runs, and OpenAPI."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import jsonschema
import pytest
from pydantic import BaseModel, Field, computed_field
from tests.cases import case
from tests.waiting import comes_true
from tests.web.serve.served_agent import CANARIES, ENVIRONMENT, Clerk, Echo, Greeter
from tests.web.serve.server import BY_APPROVER, KEY, app, asked, events, get, post

from acorn import Image, module, tool
from acorn.errors import DeclarationError, ModelError
from acorn.stores import MemoryStore
from acorn.testing import Failure, ScriptedModel, call, finish
from acorn.web.guard import LOOPBACK, AccessKey
from acorn.web.serve.app import Service, service_app


@pytest.fixture
def clerk(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return app(Clerk(store=MemoryStore()))


def test_run_route_accepts_json_input_and_returns_output(clerk: Any) -> None:
    answer = post(clerk, "/run", {"question": "Whence?", "limit": 3})
    assert answer.status_code == 200
    assert answer.json() == {"answer": "Whence?", "confidence": 1.0}
    assert len(answer.headers["x-run-id"]) == 32


def test_run_route_accepts_plain_value() -> None:
    assert post(app(Echo()), "/run", "ä \U0001f330").json() == "ä \U0001f330"
    assert post(app(Echo()), "/run", 5).status_code == 422


def test_run_route_of_agent_without_input_accepts_empty_body() -> None:
    for content in (b"", b"{}"):
        assert post(app(Greeter()), "/run", content=content).json() == "hello"


def test_wrong_input_returns_422_with_field_paths_before_model_call() -> None:
    model = ScriptedModel([])
    service = app(Clerk(model=model, store=MemoryStore()))
    for path in ("/run", "/stream"):
        answer = post(service, path, {"limit": 99, "colour": "red"})
        assert answer.status_code == 422
        error = answer.json()["error"]
        assert error["type"] == "input"
        assert sorted(problem["path"] for problem in error["problems"]) == ["colour", "limit", "question"]
    assert post(service, "/run", [1]).status_code == 422
    assert model.requests == []


def test_invalid_json_returns_400(clerk: Any) -> None:
    for body, problem in [
        (b"{", "Expecting property name enclosed in double quotes at line 1, column 2"),
        (b'"\xff"', "it is not UTF-8"),
        (b"[" * 100_000, "it is nested too deep"),
        (b"9" * 5000, "a number is too long"),
    ]:
        with case(body):
            answer = post(clerk, "/run", content=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"] == f"The body is not valid JSON: {problem}."


FAILURES: list[tuple[str, int, str]] = [
    ("fail 400", 502, "model"),
    ("fail 504", 504, "model"),
    ("lost", 502, "model"),
    ("never", 502, "parse"),
    ("boom", 500, "internal"),
    ("leave", 500, "internal"),
]


def test_each_kind_of_failure_returns_its_status_without_secret(clerk: Any, caplog: pytest.LogCaptureFixture) -> None:
    for question, status, kind in FAILURES:
        with case(question, status):
            body = {"question": question}
            chat = {"messages": [{"role": "user", "content": question}]}
            with caplog.at_level(logging.ERROR, "acorn"):
                for path, given in (("/run", body), ("/stream", body), ("/v1/chat/completions", chat)):
                    answer = post(clerk, path, given)
                    found = answer.json() if answer.status_code != 200 else events(answer)[-1]
                    assert found["error"]["type"] == kind
                    assert answer.status_code in (status, 200)
                    assert path == "/stream" or answer.status_code == status
                    assert not [canary for canary in CANARIES if canary in answer.text]
                    assert "Traceback" not in answer.text
                    assert "place.py" not in answer.text
            assert bool(caplog.text) == (kind == "internal")
            assert not [canary for canary in CANARIES if canary in caplog.text]
            caplog.clear()


def test_server_log_contains_error_details_missing_in_response(clerk: Any, caplog: pytest.LogCaptureFixture) -> None:
    post(clerk, "/run", {"question": "boom"})
    assert "RuntimeError: it broke over *** in /secret/place.py" in caplog.text


def test_retry_after_header_of_provider_is_sent_to_client() -> None:
    model = ScriptedModel([ModelError("slow down", status=429, retryable=True, retry_after=7.2)])
    answer = post(app(Greeter(model=model)), "/run", {})
    assert (answer.status_code, answer.headers["retry-after"]) == (502, "8")
    assert answer.json()["error"]["retryable"] is True


MODEL_ERRORS: list[tuple[ModelError, int]] = [
    (ModelError("no answer", timed_out=True), 504),
    (ModelError("no answer", status=408), 504),
    (ModelError("the text `(no response in time)` alone", status=500), 502),
]


def test_model_timeout_returns_504_and_other_model_error_returns_502() -> None:
    for error, status in MODEL_ERRORS:
        with case(error, status):
            answer = post(app(Greeter(model=ScriptedModel([error]))), "/run", {})
            assert (answer.status_code, answer.json()["error"]["type"]) == (status, "model")


def test_stream_route_sends_partial_answers_and_result(clerk: Any) -> None:
    answer = post(clerk, "/stream", {"question": "refund x"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert set(events(answer)[-1]) == {"paused"}
    found = events(post(clerk, "/stream", {"question": "tell me of acorns and oaks"}))
    assert found[-1]["result"]["answer"] == "tell me of acorns and oaks"
    assert found[-1]["run"]["usage"]["requests"] == 1
    assert any("partial" in event for event in found[:-1])
    assert {"done": True} in found


ALL = " ".join(CANARIES)
CHAT = {"messages": [{"role": "user", "content": "leak"}]}
WRONG: list[Any] = [{"question": 5, ALL: ALL}, {ALL: 1}, ALL, [ALL], {"messages": ALL}, {"messages": [{"role": ALL}]}]
ASKED: dict[tuple[str, str], list[Any]] = {
    ("POST", "/run"): [{"question": "leak"}, {"question": f"fail {ALL}"}],
    ("POST", "/stream"): [{"question": "leak"}, {"question": f"fail {ALL}"}],
    ("POST", "/v1/chat/completions"): [CHAT, CHAT | {"stream": True}, CHAT | {"model": ALL}],
    ("POST", "/runs/{id}/answer"): [{"answer": ALL}, {"answers": {ALL: ALL}}],
    ("GET", "/health"): [],
    ("GET", "/openapi.json"): [],
    ("GET", "/v1/models"): [],
}


def test_secret_test_table_contains_each_service_route() -> None:
    routes = Service(Greeter()).routes
    found = [(method, route.path) for route in routes for method in route.methods or () if method != "HEAD"]
    assert sorted(ASKED) == sorted(found)


def test_service_route_responses_contain_no_secret(clerk: Any) -> None:
    for address in ASKED:
        with case(address):
            _, path = address
            places = [path.format(id=each) for each in ("x", quote(ALL))]
            texts = [post(clerk, each, body).text for each in places for body in [*ASKED[address], *WRONG]]
            texts += [get(clerk, each).text for each in (*places, f"{path}/{quote(ALL)}", f"{path}?q={quote(ALL)}")]
            for canary in CANARIES:
                assert not [text for text in texts if canary in text]


def test_service_stream_events_contain_no_secret(clerk: Any) -> None:
    texts = [
        post(clerk, "/run", {"question": "leak"}).text,
        post(clerk, "/stream", {"question": "leak"}).text,
        post(clerk, "/v1/chat/completions", CHAT).text,
        post(clerk, "/v1/chat/completions", CHAT | {"stream": True}).text,
    ]
    whole = "".join(event.get("content", "") + event.get("reasoning", "") for event in events_of(texts[1]))
    pieces = [event["choices"][0]["delta"] for event in events_of(texts[3]) if event["choices"]]
    for text in (
        whole,
        "".join(piece.get("reasoning_content", "") for piece in pieces),
        json.dumps([event.get("partial") for event in events_of(texts[1])]),
    ):
        assert "***" in text
        assert "canary" not in text  # Nor the start of one.


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_output_that_looks_like_key_is_not_redacted() -> None:
    assert post(app(Echo()), "/run", "use sk-learning-tools").json() == "use sk-learning-tools"


# Paused runs


def test_paused_run_is_answered_and_resumed(clerk: Any) -> None:
    first = post(clerk, "/run", {"question": "refund"})
    assert first.status_code == 202
    waits = first.json()
    assert [request["kind"] for request in waits["requests"]] == ["approval"]
    assert waits["answer"] == f"/runs/{waits['run_id']}/answer"
    assert post(clerk, waits["answer"], {"answer": {"maybe": 1}}, headers=BY_APPROVER).status_code == 422
    assert post(clerk, waits["answer"], {"wrong": 1}).status_code == 422
    answers = {"answers": {waits["requests"][0]["id"]: True}}
    ended = post(clerk, waits["answer"], answers, headers=BY_APPROVER)
    assert (ended.status_code, ended.json()["answer"]) == (200, "200.0 paid back")
    again = post(clerk, waits["answer"], {"answers": {}})
    assert again.json() == ended.json()


def test_answer_to_unknown_run_returns_404_and_without_store_409(clerk: Any) -> None:
    assert post(clerk, "/runs/nothing/answer", {"answer": True}).status_code == 404
    assert post(app(Echo()), "/runs/nothing/answer", {"answer": True}).status_code == 409


def test_agent_that_cannot_be_served_raises_declaration_error() -> None:
    with pytest.raises(DeclarationError, match="no one can answer"):
        app(Clerk())
    with pytest.raises(DeclarationError, match="needs an instance"):
        app(Clerk)
    with pytest.raises(DeclarationError, match="list of strings"):
        app(Echo(), keys="secret")


def test_single_turn_agent_that_calls_tool_returns_unfinished_error() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    agent = Echo(model=ScriptedModel(call("look")), tools=[look])
    answer = post(app(agent), "/run", "x")
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "unfinished")


# Limits


def test_run_that_exceeds_service_timeout_returns_timeout_error(
    clerk: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACES", str(tmp_path))
    service = app(Clerk(store=MemoryStore()), timeout=0.05)
    for path in ("/run", "/stream"):
        answer = post(service, path, {"question": f"wait {path[1:]}"})
        error = answer.json() if answer.status_code == 504 else events(answer)[-1]
        assert error["error"]["type"] == "timeout"


def test_stopping_service_cancels_unfinished_run_after_grace_and_rejects_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACES", str(tmp_path))
    service = Service(Clerk(store=MemoryStore()), [AccessKey(KEY)], 600.0, 5, grace=0.01)
    served = service_app(service, LOOPBACK)

    async def main() -> None:
        waiting = asyncio.ensure_future(asked(served, "POST", "/stream", content=b'{"question": "wait long"}'))
        assert await asyncio.to_thread(comes_true, (tmp_path / "long.begun").exists)
        service.close()
        assert events(await waiting)[-1]["error"]["type"] == "stopping"
        rejected = await asked(served, "POST", "/run", content=b'{"question": "x"}')
        assert (rejected.status_code, rejected.json()["error"]["type"]) == (503, "stopping")

    asyncio.run(main())
    assert (tmp_path / "long.cancelled").exists()


def test_request_above_concurrent_run_limit_is_rejected_with_retry_after() -> None:
    async def main() -> None:
        let = asyncio.Event()

        class Slow(module[str, str]):
            """Wait."""

            model = ScriptedModel(lambda request: finish("done"))

            async def on_finish(self, output: str) -> None:
                begun.set()
                await let.wait()

        begun = asyncio.Event()
        service = app(Slow(), concurrency=1)
        first = asyncio.ensure_future(asked(service, "POST", "/run", content=b'"x"'))
        await begun.wait()
        refused = await asked(service, "POST", "/run", content=b'"x"')
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "1 run is in progress" in refused.text
        assert (await asked(service, "GET", "/health")).status_code == 200
        let.set()
        assert (await first).json() == "done"
        assert (await asked(service, "POST", "/run", content=b'"x"')).status_code == 200

    asyncio.run(main())


# The description


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"
    value: int


class Tree(BaseModel):
    kind: Literal["tree"] = "tree"
    left: Tree | Leaf = Field(discriminator="kind")
    right: Tree | Leaf = Field(discriminator="kind")


class Counted(BaseModel):
    model_config = {"extra": "forbid"}
    type: str = Field("#/$defs/nothing", alias="kindOf")
    default: Leaf | None = None

    @computed_field
    def twice(self) -> int:
        return 2


class Counter(module[Tree, Counted]):
    """Count the leaves."""

    model = ScriptedModel(lambda request: finish(Counted(kindOf="x", default=Leaf(value=1))))


def check_references(node: Any, document: Any) -> None:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                found = document
                for part in value.removeprefix("#/").split("/"):
                    found = found[part]
            check_references(value, document)
    if isinstance(node, list):
        for item in node:
            check_references(item, document)


AGENTS = [Counter(), Echo(), Greeter(), Clerk(store=MemoryStore())]


def test_openapi_document_is_valid_and_contains_schemas_of_agent() -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="the validator of OpenAPI is not installed")
    for agent in AGENTS:
        with case(agent):
            document = get(app(agent), "/openapi.json").json()
            assert document["openapi"].startswith("3.1")
            check_references(document, document)
            for schema in document["components"]["schemas"].values():
                jsonschema.Draft202012Validator.check_schema(schema)
            validator.validate(document)


def test_requests_and_responses_match_openapi_document() -> None:
    service = app(Counter())
    document = get(service, "/openapi.json").json()

    def check(value: Any, name: str) -> None:
        jsonschema.validate(value, {**document, "$ref": f"#/components/schemas/{name}"})

    given = {"left": {"kind": "leaf", "value": 1}, "right": {"kind": "leaf", "value": 2}}
    check(given, "Input")
    answer = post(service, "/run", given)
    assert answer.json()["twice"] == 2
    check(answer.json(), "Output")
    wrong = post(service, "/run", {})
    check(wrong.json(), "Error")
    with pytest.raises(jsonschema.ValidationError):
        check({}, "Input")


def test_unknown_route_returns_404_and_wrong_method_returns_405(clerk: Any) -> None:
    assert get(clerk, "/").status_code == 404
    assert "/v1/chat/completions" in get(clerk, "/nothing").json()["error"]["message"]
    wrong = [get(clerk, "/run"), post(clerk, "/health", {}), get(clerk, "/runs/x/answer")]
    assert [each.status_code for each in wrong] == [405] * 3
    assert [each.headers["allow"] for each in wrong] == ["POST", "GET, HEAD", "POST"]


def test_model_failure_during_stream_is_sent_as_last_event() -> None:
    model = ScriptedModel([Failure(status=500, after=finish(answer="half of it"))])
    found = events(post(app(Clerk(model=model, store=MemoryStore())), "/stream", {"question": "x"}))
    assert found[-1]["error"]["type"] == "model"
    assert "partial" in found[0]


def test_image_input_is_accepted_only_as_data_url() -> None:
    class Look(BaseModel):
        question: str
        photo: Image

    class Looker(module[Look, str]):
        """Look at it."""

    model = ScriptedModel(lambda request: finish("a cat"))
    url = "data:image/png;base64,iVBORw0KGgo="
    answer = post(app(Looker(model=model)), "/run", {"question": "Whose?", "photo": url})
    assert (answer.status_code, answer.json()) == (200, "a cat")
    assert url in json.dumps(model.requests[0].messages)
    refused = post(app(Looker(model=model)), "/run", {"question": "Whose?", "photo": "/etc/passwd"})
    assert (refused.status_code, refused.json()["error"]["problems"][0]["path"]) == (422, "photo")


def test_openapi_document_describes_answers_to_approvals() -> None:
    document = get(app(Echo()), "/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert schemas["Answer.Approval"]["properties"]["approved"]["const"] is True
    assert schemas["Answer.Rejection"]["properties"]["approved"]["const"] is False
    for body in ({"answer": {"approved": False, "reason": "x"}}, {"answer": "yes"}, {"answers": {"id": True}}):
        jsonschema.validate(body, {**document, "$ref": "#/components/schemas/Answer"})

"""Tests of `RetryingModel` with each of the four request methods of a model."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.cases import case
from tests.raw_model import RawModel

from acorn import ModelError, module
from acorn.models import Delta, ModelRequest, ModelResponse, Price
from acorn.models.assemble import Assembly
from acorn.models.port import can_stream, is_model, thinks
from acorn.models.retry import LONGEST_WAIT, RetryingModel, RetryPolicy
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing.scripted import Scripted

Ask = Callable[[RetryingModel, ModelRequest], ModelResponse]


def whole(retrying: RetryingModel, request: ModelRequest) -> ModelResponse:
    return retrying.complete(request)


def awhole(retrying: RetryingModel, request: ModelRequest) -> ModelResponse:
    return asyncio.run(retrying.acomplete(request))


def streamed(retrying: RetryingModel, request: ModelRequest) -> ModelResponse:
    assembly = Assembly()
    for delta in retrying.stream(request):
        assembly.add(delta)
    return assembly.response()


def astreamed(retrying: RetryingModel, request: ModelRequest) -> ModelResponse:
    async def main() -> ModelResponse:
        assembly = Assembly()
        async for delta in retrying.astream(request):
            assembly.add(delta)
        return assembly.response()

    return asyncio.run(main())


@pytest.fixture(params=[whole, awhole, streamed, astreamed], ids=["complete", "acomplete", "stream", "astream"])
def ask(request: pytest.FixtureRequest) -> Ask:
    way: Ask = request.param
    return way


def request(**fields: Any) -> ModelRequest:
    return ModelRequest([{"role": "user", "content": "Where?"}], [], temperature=0.7, max_tokens=100, **fields)


def retried(model: Any, count: int = 2) -> RetryingModel:
    return RetryingModel(model, RetryPolicy(count, delay=0.0))


def busy(retry_after: float | None = None) -> ModelError:
    return ModelError("busy", retryable=True, retry_after=retry_after)


# Retries


def test_retryable_failure_is_retried_until_success(ask: Ask) -> None:
    for status in [None, 408, 409, 429, 500, 503, 529]:
        with case(status):
            with ScriptedModel([Failure(status), Failure(status), "Here."]) as model:
                response = ask(retried(model), request())
            assert response.content == "Here."
            assert (response.attempts, response.waits) == (3, (0.0, 0.0))


def test_immediate_success_has_one_attempt(ask: Ask) -> None:
    with ScriptedModel(["Here."]) as model:
        response = ask(retried(model), request())
    assert (response.attempts, response.waits) == (1, ())


def test_request_that_always_fails_is_sent_retry_count_plus_one_times(ask: Ask) -> None:
    for count in [0, 1, 3]:
        with case(count):
            with ScriptedModel([Failure(503)] * count + [Failure(429)]) as model, pytest.raises(ModelError) as caught:
                ask(retried(model, count), request())
            assert len(model.requests) == count + 1
            assert caught.value.status == 429


def test_request_with_permanent_failure_is_sent_once(ask: Ask) -> None:
    for status in [400, 401, 404, 413, 422]:
        with case(status):
            model = ScriptedModel([Failure(status)])
            with pytest.raises(ModelError):
                ask(retried(model), request())
            assert len(model.requests) == 1


def test_exception_that_is_not_model_error_is_raised_without_retry(ask: Ask) -> None:
    model = ScriptedModel([KeyError("a bug")])
    with pytest.raises(KeyError, match="a bug"):
        ask(retried(model), request())
    assert len(model.requests) == 1


def test_error_after_retry_does_not_contain_earlier_error_as_context(ask: Ask) -> None:
    model = ScriptedModel([Failure(503), Failure(401)])
    with pytest.raises(ModelError) as caught:
        ask(retried(model), request())
    assert caught.value.__context__ is None


# Streams


def hear(retrying: RetryingModel, heard: list[Delta], way: str) -> None:
    """Return all deltas of a stream until the stream fails."""

    async def main() -> None:
        async for delta in retrying.astream(request()):
            heard.extend([delta])

    if way == "async":
        asyncio.run(main())
    else:
        heard.extend(retrying.stream(request()))


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_stream_broken_after_first_delta_is_not_retried(way: str) -> None:
    heard: list[Delta] = []
    model = ScriptedModel([Failure(503, after=Reply("Let me see."))], chunk_size=4)
    with pytest.raises(ModelError):
        hear(retried(model), heard, way)
    assert "".join(delta.content for delta in heard) == "Let me see."
    assert len(model.requests) == 1


def test_first_delta_after_retry_contains_number_of_attempts(way: str) -> None:
    heard: list[Delta] = []
    hear(retried(ScriptedModel([Failure(503), Reply("Let me see.")], chunk_size=4)), heard, way)
    assert [delta.attempts for delta in heard[:3]] == [2, 1, 1]
    assert [delta.waits for delta in heard[:3]] == [(0.0,), (), ()]


class Watched(ScriptedModel):
    """A model whose streams are not generators and record when they are closed."""

    def __init__(self, replies: Sequence[Scripted]) -> None:
        super().__init__(replies)
        self.closed = 0

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        return Stream(self, super().stream(request))

    def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        return Stream(self, super().astream(request))


class Stream:
    def __init__(self, model: Watched, deltas: Any) -> None:
        self._model = model
        self._deltas = deltas

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        found: Delta = next(self._deltas)
        return found

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        found: Delta = await anext(self._deltas)
        return found

    def close(self) -> None:
        self._model.closed += 1

    async def aclose(self) -> None:
        self._model.closed += 1


def test_failed_stream_and_retried_stream_are_both_closed(way: str) -> None:
    model = Watched([Failure(503), "Let me see."])
    hear(retried(model), [], way)
    assert model.closed == 2


def test_stream_left_early_is_closed(way: str) -> None:
    async def leave() -> None:
        deltas = retried(model).astream(request())
        await anext(deltas)
        await deltas.aclose()

    model = Watched(["Let me see."])
    if way == "async":
        asyncio.run(leave())
    else:
        deltas = retried(model).stream(request())
        next(deltas)
        assert model.closed == 0
        deltas.close()
    assert model.closed == 1


def test_stream_without_deltas_is_read_as_empty_response(way: str) -> None:
    class Silent(ScriptedModel):
        def _pieces(self, reply: Scripted, request: ModelRequest, at: int) -> Iterator[Delta]:
            self._respond(reply, request, at)
            yield from ()

    response = (astreamed if way == "async" else streamed)(retried(Silent([Failure(503), ""])), request())
    assert (response.content, response.attempts) == ("", 2)


# Waiting and time


def test_retry_after_of_provider_is_waited(ask: Ask) -> None:
    with ScriptedModel([busy(0.01), busy(0.02), "Here."]) as model:
        assert ask(retried(model), request()).waits == (0.01, 0.02)


def test_wait_longer_than_timeout_raises_immediately(ask: Ask) -> None:
    for asked, left in [(LONGEST_WAIT + 1, None), (5.0, 4.0), (5.0, 5.0)]:
        with case(asked, left):
            model = ScriptedModel([busy(asked)])
            with pytest.raises(ModelError) as caught:
                ask(retried(model), request(timeout=left))
            assert caught.value.retry_after == asked
            assert len(model.requests) == 1


def test_retries_have_remaining_time_as_timeout(ask: Ask) -> None:
    first = request(timeout=100.0)
    with ScriptedModel([Failure(503, delay=0.02), busy(0.02), "Here."]) as model:
        ask(retried(model), first)
    assert model.requests[0] is first
    assert first.timeout == 100.0
    times = [sent.timeout for sent in model.requests]
    assert times[1] is not None
    assert times[2] is not None
    assert 0 < times[1] <= 99.98
    assert 0 < times[2] <= times[1] - 0.02
    assert all(sent.messages is first.messages for sent in model.requests)


def test_request_without_timeout_is_resent_unchanged(ask: Ask) -> None:
    first = request()
    with ScriptedModel([Failure(503), "Here."]) as model:
        ask(retried(model), first)
    assert all(sent is first for sent in model.requests)


def test_cancelled_wait_sends_no_request() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(retried(model).acomplete(request()))
        while not model.requests:
            await asyncio.sleep(0)
        task.cancel()
        await task

    model = ScriptedModel([busy(LONGEST_WAIT)])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert len(model.requests) == 1


# The wrapped model


class Odd(ScriptedModel):
    thinks = True
    provider = "acme"


class Mute(RawModel):
    stream = astream = None


def test_retrying_model_has_attributes_of_wrapped_model() -> None:
    retrying = retried(Odd([], name="acme/large", price=Price(1.0, 2.0), forces=False))
    assert (retrying.name, retrying.price(), retrying.provider) == ("acme/large", Price(1.0, 2.0), "acme")
    assert not retrying.can_force_tool(request())
    assert copy.copy(retrying).name == "acme/large"
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = retrying.no_such_thing


def test_retrying_model_has_capabilities_of_wrapped_model() -> None:
    thoughtful, plain = retried(Odd([])), retried(RawModel([]))
    assert is_model(thoughtful)
    assert is_model(plain)
    assert (thinks(thoughtful), thinks(plain)) == (True, False)
    assert (can_stream(thoughtful), can_stream(plain), can_stream(retried(Mute([])))) == (True, True, True)


def test_agent_with_retrying_model_returns_output() -> None:
    class Plain(module):
        final_output = str

    with ScriptedModel([Failure(503), finish(result="done")]) as model:
        assert Plain(model=retried(model))() == "done"


# The log


def test_retries_are_logged_without_content(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "acorn")
    script: list[Scripted] = [Failure(503, "you said: Where?"), Failure(None, "sk-secret"), "Here."]
    ask(retried(ScriptedModel(script, name="acme/large")), request())
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("acorn", "INFO", "`acme/large` failed (HTTP 503). Attempt 2 of 3 follows in 0.00 s."),
        ("acorn", "INFO", "`acme/large` failed (no response). Attempt 3 of 3 follows in 0.00 s."),
    ]


def test_failure_without_retry_is_not_logged(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "acorn")
    with pytest.raises(ModelError):
        ask(retried(ScriptedModel([Failure(401)])), request())
    assert not caplog.records


def test_acorn_logger_has_null_handler_that_prints_nothing() -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("acorn").handlers)

"""Tests of failed requests: the number of retries, the delays, and the errors."""

from __future__ import annotations

import asyncio
import math
import threading
from email.utils import formatdate
from itertools import cycle, product
from typing import Any

import httpx
import pytest
from tests.cases import case
from tests.clock import FakeClock
from tests.contract.conftest import Wire
from tests.long_version import IS_LONG
from tests.loopback import Fault, Loopback, Request
from tests.ports import free_port
from tests.waiting import AGES, PATIENCE, comes_true, given_time, waiting_for_nothing

from acorn import AcornError, LimitError, ModelError, module
from acorn.models.retry import LONGEST_WAIT, RetryPolicy, parse_retry_after
from acorn.testing import Reply, call, finish


class Plain(module):
    """You answer."""

    final_output = str
    max_steps = 3


DONE = finish(result="done")

# Retryable failures: what happens, the reported status, and other keys of the model dict.
PASSING: dict[str, tuple[Any, int | None, dict[str, Any]]] = {
    "408": (Fault(status=408), 408, {}),
    "409": (Fault(status=409), 409, {}),
    "429": (Fault(status=429), 429, {}),
    "500": (Fault(status=500), 500, {}),
    "502 in HTML": (Fault(status=502, body=b"<html>Bad gateway</html>", content_type="text/html"), 502, {}),
    "503": (Fault(status=503), 503, {}),
    "503 without a word": (Fault(status=503, body=b""), 503, {}),
    "529": (Fault(status=529), 529, {}),
    "no response in time": (Fault(delay=AGES), None, {"timeout": 0.1}),
    "reset before the answer": (Fault(reset="before"), None, {}),
    "reset inside the answer": (Fault(reset="inside"), None, {}),
    "closed inside the answer": (Fault(cut=10), None, {}),
    "no HTTP at all": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", None, {}),
}

# Permanent failures: one request, whatever `num_retries` says.
LASTING: dict[str, tuple[Any, int | None]] = {
    "400": (Fault(status=400), 400),
    "401": (Fault(status=401), 401),
    "402": (Fault(status=402), 402),
    "403": (Fault(status=403), 403),
    "404": (Fault(status=404), 404),
    "413": (Fault(status=413), 413),
    "418": (Fault(status=418), 418),
    "422": (Fault(status=422), 422),
    "broken JSON": (Fault(body=b'{"choices": [{"mess'), None),
    "HTML instead of JSON": (Fault(body=b"<html>Hello</html>", content_type="text/html"), None),
    "JSON called text": (Fault(body=b"hello", content_type="text/plain"), None),
    "an empty answer": (Fault(body=b""), None),
}


def test_request_with_retryable_failure_is_sent_num_retries_plus_one_times(wire: Wire, clock: FakeClock) -> None:
    for name, (fault, status, extra) in PASSING.items():
        for count in (2, 0) if IS_LONG or name == "503" else (2,):
            with case(name, count):
                wire.serve([fault] * 3)
                error = wire.fails(Plain(model=wire.model(num_retries=count, **extra)))
                assert wire.count(expected=count + 1) == count + 1
                assert (error.provider, error.status, error.retryable) == (wire.protocol, status, True)
                assert error.retry_after is None
                assert wire.name in str(error)
                assert error.__cause__ is not None


def test_request_with_permanent_failure_is_sent_once(wire: Wire) -> None:
    for name, (fault, status) in LASTING.items():
        with case(name):
            wire.serve([fault] * 3)
            error = wire.fails(Plain(model=wire.model(num_retries=3, retry_delay=0.001)))
            assert wire.count() == 1
            assert (error.provider, error.status, error.retryable) == (wire.protocol, status, False)
            assert wire.name in str(error)
            assert error.__cause__ is not None


def test_refused_connection_raises_retryable_model_error(wire: Wire, clock: FakeClock) -> None:
    port = free_port()
    wire.serve([])
    for count in (0, 2):
        model = wire.model(api_base=f"http://127.0.0.1:{port}", num_retries=count)
        error = wire.fails(Plain(model=model))
        assert (error.provider, error.status, error.retryable) == (wire.protocol, None, True)
        assert len(clock.waits) == count
        assert "no connection" in str(error)
        assert "`api_base`" in str(error)


@pytest.mark.parametrize("lane", ["litellm"], indirect=True)
def test_litellm_adds_no_retries_to_retries_of_acorn(gpt: Wire, clock: FakeClock) -> None:
    models = ["hosted_vllm/x", "deepseek/deepseek-chat", "mistral/mistral-large-latest", "ollama_chat/x", "azure/x"]
    faults = [Fault(status=503), Fault(reset="before")]
    for name, fault in product(models, faults) if IS_LONG else zip(models, cycle(faults)):
        with case(name, fault):
            gpt.serve([fault] * 3)
            error = gpt.fails(Plain(model=gpt.model(model=name, num_retries=2, api_version="2024-02-01")))
            assert gpt.count() == 3
            assert error.retryable


def test_default_number_of_retries_is_two_and_max_retries_is_ignored(wire: Wire, clock: FakeClock) -> None:
    assert RetryPolicy.of({"model": "x"}) == RetryPolicy(count=2, delay=0.5)
    wire.serve(lambda request: Fault(status=503))
    wire.fails(Plain(model=wire.model()))
    assert wire.count() == 3
    # The setting of LiteLLM changes nothing.
    wire.fails(Plain(model=wire.model(max_retries=5)))
    assert wire.count() == 6
    wire.fails(Plain(model=wire.model(max_retries=5, num_retries=0)))
    assert wire.count() == 7


def test_retried_request_has_identical_body(wire: Wire, clock: FakeClock) -> None:
    server = wire.serve([Fault(status=503), Fault(reset="before"), Fault(status=429), DONE])
    run = wire.run(Plain(model=wire.model(num_retries=3)))
    assert run.output == "done"
    assert run.usage.requests == 1
    assert len({request.raw for request in server.requests}) == 1


def test_each_request_of_run_can_use_all_retries(wire: Wire) -> None:
    wire.serve([Fault(status=503), "Hm.", Fault(status=503), "Hm.", Fault(status=503), DONE])
    assert wire.run(Plain(model=wire.model(num_retries=1))).output == "done"
    assert wire.count() == 6


def test_permanent_failure_after_retryable_failures_raises_last_error(wire: Wire) -> None:
    wire.serve([Fault(status=503), Fault(status=429), Fault(status=401, message="no such key")])
    error = wire.fails(Plain(model=wire.model(num_retries=5)))
    assert (error.status, error.retryable) == (401, False)
    assert wire.count() == 3


@pytest.mark.parametrize("lane", ["native"])
def test_http_redirect_raises_model_error_that_names_api_base(wire: Wire) -> None:
    wire.serve([Fault(status=307, headers={"Location": "/moved"})])
    error = wire.fails(Plain(model=wire.model(num_retries=0)))
    assert error.status == 307
    assert "Set `api_base` in the model dict to that address." in str(error)


# Waiting


def test_retry_delay_doubles_with_each_retry(wire: Wire, clock: FakeClock) -> None:
    wire.serve(lambda request: Fault(status=503))
    wire.fails(Plain(model=wire.model(num_retries=3, retry_delay=5)))
    assert clock.waits == [pytest.approx(5, rel=0.25), pytest.approx(10, rel=0.25), pytest.approx(20, rel=0.25)]


def test_retry_delay_has_jitter_and_maximum() -> None:
    error = ModelError("busy", retryable=True)
    retries = RetryPolicy(count=2000, delay=1.0)
    waits = [[retries.wait(error, failed, None) for _ in range(50)] for failed in (1, 2, 3)]
    for expected, found in zip((1.0, 2.0, 4.0), waits, strict=True):
        assert all(wait is not None and 0.75 * expected <= wait <= 1.25 * expected for wait in found)
        assert len(set(found)) > 1
    assert retries.wait(error, 1999, None) == LONGEST_WAIT


def http_date(seconds: float) -> str:
    return formatdate(seconds, usegmt=True)


def test_retry_after_header_delays_retry(wire: Wire, clock: FakeClock) -> None:
    for status, asked, seconds in (
        (429, "40", 40),
        (503, "0.5", 0.5),
        (429, http_date(clock.time() + 30), 30),
        (429, http_date(clock.time() - 30), 0),
    ):
        with case(status, asked):
            wire.serve([Fault(status=status, headers={"Retry-After": asked}), DONE])
            began = clock.time()
            assert wire.run(Plain(model=wire.model(retry_delay=10))).output == "done"
            assert clock.waits.pop() == clock.time() - began == pytest.approx(seconds)
            clock.advance(began - clock.time())


def test_retry_after_over_a_minute_raises_without_retry(wire: Wire, clock: FakeClock) -> None:
    for asked, seconds in (("3600", 3600), ("61", 61), (http_date(clock.time() + 90), 90), ("inf", math.inf)):
        with case(asked):
            wire.serve([Fault(status=429, headers={"Retry-After": asked})])
            error = wire.fails(Plain(model=wire.model(num_retries=3)))
            assert wire.count() == 1
            assert (error.status, error.retryable, error.retry_after) == (429, True, seconds)
            assert clock.waits == []


def test_parse_retry_after_returns_seconds_or_none_for_each_header_form() -> None:
    for header, seconds in (
        (None, None),
        ("", None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("nan", None),
        ("soon", None),
        ("Wed, 99 Foo", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ):
        with case(header):
            assert parse_retry_after(header) == seconds


def test_retry_wait_longer_than_remaining_time_raises_immediately(wire: Wire) -> None:
    wire.serve(lambda request: Fault(status=429, headers={"Retry-After": "50"}))
    error = wire.fails(Plain(model=wire.model(num_retries=3), max_seconds=45))
    assert wire.count() == 1
    assert error.retry_after == 50.0


@pytest.mark.every_way
def test_hanging_provider_is_abandoned_after_max_seconds(wire: Wire) -> None:
    wire.serve(lambda request: Fault(delay=AGES))

    def hurry(seconds: float) -> LimitError | None:
        with waiting_for_nothing(), pytest.raises(LimitError, match="max_seconds") as caught:
            wire.run(Plain(model=wire.model(num_retries=3), max_seconds=seconds))
        return caught.value if wire.count() else None

    assert given_time(hurry, 0.1).run.stop_reason == "error"
    assert wire.count() == 1


def test_retry_has_remaining_time_as_timeout(gpt: Wire, clock: FakeClock) -> None:
    for timeout in (AGES, None, httpx.Timeout(AGES)):

        def hurry(seconds: float, timeout: Any = timeout) -> int | None:
            def answer(request: Request) -> Fault:
                if gpt.count() > 1:
                    return Fault(delay=AGES)
                clock.advance(AGES - seconds)
                return Fault(status=503)

            gpt.serve(answer)
            with waiting_for_nothing(), pytest.raises(AcornError):
                gpt.run(Plain(model=gpt.model(timeout=timeout, num_retries=1, retry_delay=0), max_seconds=AGES))
            return gpt.count() if gpt.count() > 1 else None

        with case(timeout):
            assert given_time(hurry, 0.1) == 2


def test_endless_retryable_failures_end_after_max_seconds(wire: Wire, clock: FakeClock) -> None:
    def answer(request: Request) -> Fault:
        clock.advance(100)
        return Fault(status=503)

    wire.serve(answer)
    with pytest.raises(AcornError):
        wire.run(Plain(model=wire.model(num_retries=100_000, retry_delay=0), max_seconds=1050))
    assert wire.count() == 11


def test_retry_wait_does_not_block_event_loop() -> None:
    async def both(agent: Plain, waits: threading.Event) -> None:
        task = asyncio.ensure_future(agent.acall())
        assert await asyncio.to_thread(waits.wait, PATIENCE)
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asked = threading.Event()

    def answer(request: Request) -> Fault:
        asked.set()
        return Fault(status=429, headers={"Retry-After": "50"})

    with Loopback(answer) as server:
        asyncio.run(both(Plain(model=server.openai()), asked))
        assert len(server.requests) == 1  # The wait was not over.


def test_cancelled_call_does_not_wait_for_provider() -> None:
    async def give_up(agent: Plain) -> None:
        task = asyncio.ensure_future(agent.acall())
        assert await asyncio.to_thread(comes_true, lambda: server.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Loopback(lambda request: Fault(delay=AGES)) as server, waiting_for_nothing():
        asyncio.run(give_up(Plain(model=server.openai())))
        assert len(server.requests) == 1


def test_concurrent_requests_are_all_sent_at_once() -> None:
    many = 150
    together = threading.Barrier(many, timeout=PATIENCE)

    def answer(request: Request) -> Reply:
        together.wait()
        return DONE

    async def all_at_once(agent: Plain) -> list[Any]:
        return await asyncio.gather(*(agent.acall() for _ in range(many)))

    with Loopback(answer) as server:
        outputs = asyncio.run(all_at_once(Plain(model=server.openai(num_retries=0))))
        assert outputs == ["done"] * many
        assert len(server.requests) == many


# Messages


@pytest.mark.every_way
def test_timeout_error_contains_advice(wire: Wire) -> None:
    wire.serve(lambda request: Fault(delay=AGES))
    error = wire.fails(Plain(model=wire.model(timeout="0.1", num_retries=0)))
    assert "no response in time" in str(error)
    assert "`timeout`" in str(error)
    assert error.status is None
    assert error.timed_out


OPENAI_SAYS: dict[str, tuple[Fault, str]] = {
    "wrong key": (
        Fault(status=401, code="invalid_api_key", message="Incorrect API key provided: sk-ab***yz."),
        "Check the `api_key` in the model dict, or the provider's environment variable.",
    ),
    "unknown model": (
        Fault(status=404, code="model_not_found", message="The model `gpt-4o` does not exist."),
        "Check the model id `openai/gpt-4o`",
    ),
    "context too long": (
        Fault(
            status=400,
            code="context_length_exceeded",
            message="This model's maximum context length is 128000 tokens. However, your messages resulted in 200000.",
        ),
        "Shorten it in `on_step`",
    ),
    "content filter": (
        Fault(
            status=400,
            code="content_policy_violation",
            message="Your request was rejected as a result of our safety system.",
        ),
        "Change the input or the prompt",
    ),
    "no money": (
        Fault(status=429, code="insufficient_quota", message="You exceeded your current quota."),
        "Check its plan and billing",
    ),
    "too fast": (Fault(status=429, code="rate_limit_exceeded", message="Slow down."), "Wait, or send fewer requests"),
}
ANTHROPIC_SAYS: dict[str, tuple[Fault, str]] = {
    "wrong key": (
        Fault(status=401, code="authentication_error", message="invalid x-api-key"),
        "Check the `api_key` in the model dict, or the provider's environment variable.",
    ),
    "unknown model": (
        Fault(status=404, code="not_found_error", message="model: claude-sonnet-4-5"),
        "Check the model id `anthropic/claude-sonnet-4-5`",
    ),
    "context too long": (
        Fault(status=400, code="invalid_request_error", message="prompt is too long: 208310 tokens > 200000 maximum"),
        "Shorten it in `on_step`",
    ),
    "content filter": (
        Fault(status=400, code="invalid_request_error", message="Output blocked by content filtering policy"),
        "Change the input or the prompt",
    ),
    "no money": (
        Fault(status=400, code="invalid_request_error", message="Your credit balance is too low."),
        "Check its plan and billing",
    ),
    "too fast": (Fault(status=429, code="rate_limit_error", message="Slow down."), "Wait, or send fewer requests"),
}


@pytest.mark.chat
def test_model_error_contains_provider_text_and_advice(wire: Wire) -> None:
    for name, (fault, advice) in wire.either(openai=OPENAI_SAYS, anthropic=ANTHROPIC_SAYS).items():
        with case(name):
            wire.serve([fault])
            error = wire.fails(Plain(model=wire.model(num_retries=0)))
            text = str(error)
            assert wire.name in text
            assert f"HTTP {fault.status}" in text
            assert fault.message.rstrip(".") in text
            assert advice in text
            assert "litellm" not in text.lower().replace("as in litellm's list", "")
            assert "Exception" not in text
            assert (error.status, error.provider) == (fault.status, wire.protocol)


def test_context_length_error_that_mentions_max_tokens_keeps_default_max_tokens(claude: Wire) -> None:
    words = "input length and `max_tokens` exceed context limit: 197202 + 4096 > 200000, decrease input length"
    claude.serve([Fault(status=400, code="invalid_request_error", message=words), DONE])
    agent = Plain(model=claude.model())
    error = claude.fails(agent)
    assert "Shorten it in `on_step`" in str(error)
    assert claude.count() == 1
    claude.run(agent)
    assert claude.bodies()[1]["max_tokens"] == 4096


def test_unknown_provider_error_contains_model_id_format(gpt: Wire) -> None:
    gpt.serve([])
    for name in ("nonsense", "no_such_provider/model"):
        error = gpt.fails(Plain(model={"model": name, "api_base": gpt.server.url, "api_key": "k"}))
        assert f"Check the model id `{name}`" in str(error)
        assert "openai/" in str(error)
        assert (error.status, error.retryable) == (None, False)
    assert gpt.count() == 0


def test_model_error_contains_failed_run(wire: Wire) -> None:
    wire.serve([call("nothing"), Fault(status=401)])
    error = wire.fails(Plain(model=wire.model()))
    assert error.run.stop_reason == "error"
    assert error.run.error is error
    assert error.run.steps == 1
    assert error.run.usage.requests == 1


def test_exception_being_handled_by_caller_is_not_changed_by_model_error(wire: Wire) -> None:
    wire.serve(lambda request: Fault(body=b"no JSON"))
    agent = Plain(model=wire.model())
    theirs = ConnectionResetError("sk-theirs-and-nothing-of-ours")
    try:
        raise theirs
    except ConnectionResetError:
        error = wire.fails(agent)
    assert not error.retryable
    assert wire.count() == 1
    assert theirs.args == ("sk-theirs-and-nothing-of-ours",)


# Limits


@pytest.mark.parametrize("streams", [False, True])
def test_request_resent_without_rejected_default_setting_counts_twice_in_rate_limit(wire: Wire, streams: bool) -> None:
    class Limited(Plain):
        rate_limit = {"requests": 2, "per": AGES}

        if streams:

            def on_stream(self, chunk: Any) -> None:
                """Look at it."""

    refusal = Fault(status=400, message="Unsupported value: 'temperature' does not support 0.7 with this model.")
    wire.serve([refusal, DONE, DONE])
    agent = Limited(model=wire.model(num_retries=0))
    assert wire.call(agent) == "done"
    assert "temperature" not in wire.bodies()[1]
    with waiting_for_nothing(), pytest.raises(LimitError):
        wire.call(agent.using(max_seconds=0.05))
    assert wire.count() == 2

"""Tests of API keys: in each accepted form, they are in no error, record, history, log, warning or saved run."""

from __future__ import annotations

import json
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from tests.cases import case
from tests.contract.conftest import Wire
from tests.long_version import IS_LONG
from tests.loopback import Fault, Request
from tests.ports import free_port
from tests.waiting import AGES

from acorn import ModelError, Run, Step, module, tool
from acorn._call.plan import new_machine
from acorn._drive.sync_driver import call_tool
from acorn._formats.redact import Redactor, find_secrets
from acorn._machine.asks import AskHook, AskModel, AskTool
from acorn._machine.saved_run import save
from acorn.testing import Reply, call, finish

# No canary looks like a provider's key: they are redacted because they are known, not by their format.
KEY = "canary-key-4f1d9b"
ENVIRONMENT = "canary-environment-77ab01"
HEADER = "canary-header-c02e5d"
PASSWORD = "canary-password-9d3e44"
USER = "canary-user-18bb0f"
TOKEN = "canary-token-55e1aa"
QUERY = "canary-query-0be7f2"
CANARIES = (KEY, ENVIRONMENT, HEADER, PASSWORD, USER, TOKEN, QUERY)


@tool
def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing in {place}"


class Plain(module):
    """You answer."""

    final_output = str
    max_steps = 2
    tools = [look]


@pytest.fixture(autouse=True)
def key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "SOME_OTHER_SECRET"):
        monkeypatch.setenv(name, ENVIRONMENT)


def in_the_dict(wire: Wire) -> dict[str, Any]:
    return wire.model(api_key=KEY)


def in_the_environment(wire: Wire) -> dict[str, Any]:
    config = wire.model()
    del config["api_key"]
    return config


def in_a_header(wire: Wire) -> dict[str, Any]:
    return wire.model(extra_headers={"Authorization": f"Bearer {HEADER}", "X-Api-Key": KEY, "X-Odd": QUERY})


def in_the_address(wire: Wire) -> dict[str, Any]:
    config = wire.model()
    config["api_base"] = config["api_base"].replace("://", f"://{USER}:{PASSWORD}@")
    return config


def alone_in_the_address(wire: Wire) -> dict[str, Any]:
    config = wire.model()
    config["api_base"] = config["api_base"].replace("://", f"://{TOKEN}@")
    return config


def in_the_query(wire: Wire) -> dict[str, Any]:
    config = wire.model()
    config["api_base"] += f"?api-key={QUERY}&sig={TOKEN}"
    return config


GIVEN = {
    in_the_dict: (KEY,),
    in_the_environment: (),
    in_a_header: (HEADER, KEY, QUERY),
    in_the_address: (PASSWORD, f"{USER}:{PASSWORD}"),
    alone_in_the_address: (TOKEN,),
    in_the_query: (QUERY, TOKEN),
}


def echo(request: Request, given: Any) -> str:
    """Return the response of a provider that repeats everything it was sent, in two ways."""
    known = " and ".join((ENVIRONMENT, *GIVEN[given]))
    return f"Wrong key: {known}; you sent {request.headers} to {request.path}."


Failing = Callable[[str], Fault]
FAULTS: dict[str, Failing] = {
    "401": lambda words: Fault(status=401, message=words),
    "400": lambda words: Fault(status=400, message=words),
    "404": lambda words: Fault(status=404, message=words),
    "429": lambda words: Fault(status=429, message=words),
    "500": lambda words: Fault(status=500, message=words),
    "500 in plain text": lambda words: Fault(status=500, body=words.encode(), content_type="text/plain"),
    "broken JSON": lambda words: Fault(body=json.dumps({"error": words}).encode()[:-2]),
    "an error in an answer": lambda words: Fault(body=json.dumps({"error": {"message": words}}).encode()),
    "another shape": lambda words: Fault(body=json.dumps({"choices": [{"message": words}]}).encode()),
    "reset": lambda words: Fault(reset="before"),
}


class Watch:
    """Return everything visible of a run as text."""

    def __init__(self, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
        self._caplog = caplog
        self._capsys = capsys
        self.warned: list[str] = []
        self.seen: list[str] = []

    def add(self, *things: Any) -> None:
        for thing in things:
            self.seen += [str(thing), repr(thing)]

    def add_error(self, error: BaseException) -> None:
        self.seen += traceback.format_exception(error)
        known: list[BaseException] = []
        ends: list[BaseException | None] = [error]
        while ends:
            here = ends.pop()
            if here is None or here in known:
                continue
            known.append(here)
            ends += [here.__cause__, here.__context__]
            self.add(here, here.args, getattr(here, "__notes__", []))
            texts = {name: value for name, value in vars(here).items() if isinstance(value, str | dict | list | tuple)}
            self.add(texts)
            if isinstance(getattr(here, "run", None), Run):
                self.add(here.run.to_json())  # type: ignore[attr-defined]
        assert len(known) > 1, "the cause is gone"

    def check(self) -> None:
        out, err = self._capsys.readouterr()
        messages = [record.getMessage() for record in self._caplog.records if record.name.startswith("acorn")]
        logged = [self._caplog.handler.format(record) for record in self._caplog.records if record.name == "acorn"]
        for text in (*self.seen, *self.warned, *messages, *logged, out, err):
            for canary in CANARIES:
                assert canary not in text, f"`{canary}` in: {text[:2000]}"
        self.seen.clear()
        self._caplog.clear()


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> Iterator[Watch]:
    caplog.set_level(logging.DEBUG, logger="acorn")
    watching = Watch(caplog, capsys)
    with warnings.catch_warnings(record=True) as caught:
        yield watching
    watching.warned = [str(warning.message) for warning in caught]
    watching.check()


def test_api_key_echoed_by_provider_is_absent_from_error(wire: Wire, watch: Watch) -> None:
    for number, (given, fault) in enumerate(product(GIVEN, FAULTS)):
        if number % 3 and not IS_LONG:
            continue

        def answer(request: Request, given: Any = given, fault: str = fault) -> Fault:
            return FAULTS[fault](echo(request, given))

        wire.serve(answer)
        agent = Plain(model={**given(wire), "num_retries": 0})
        with case(given.__name__, fault):
            error = wire.fails(agent)
            assert wire.count() == 1
            watch.add_error(error)
            watch.add(agent, error.run, error.run.history, vars(error.run))
            watch.check()


def test_credentials_given_in_each_way_are_sent_to_provider(wire: Wire, watch: Watch) -> None:
    expected = {in_the_dict: KEY, in_the_environment: ENVIRONMENT, in_a_header: HEADER, in_the_query: QUERY}
    for given in GIVEN:
        server = wire.serve([call("look", place="here"), finish(result="done")])
        agent = Plain(model=given(wire))
        with case(given.__name__):
            run = wire.run(agent)
            assert run.output == "done"
            sent = f"{server.requests[0].headers} {server.requests[0].path}"
            assert expected.get(given, "") in sent
            watch.add(agent, run, run.history, vars(run), agent.history, agent.last, run.to_json())
            watch.check()


def test_api_key_is_absent_from_errors_of_connection_and_timeout(wire: Wire, watch: Watch) -> None:
    port = free_port()
    for given in GIVEN:
        server = wire.serve([Fault(delay=AGES)])
        config = {**given(wire), "num_retries": 0, "timeout": 0.02}
        with case(given.__name__):
            watch.add_error(wire.fails(Plain(model=config)))
            config["api_base"] = config["api_base"].replace(str(server.port), str(port))
            error = wire.fails(Plain(model={**config, "timeout": AGES}))
            assert "no connection" in str(error)
            watch.add_error(error)
            watch.check()


def test_unknown_key_with_known_api_key_format_is_redacted_in_error(wire: Wire) -> None:
    shapes = [
        "sk-proj-Abc123_def456Ghi789",
        "sk-ant-api03-abcdefghijkl",
        "AIzaSyA1234567890abcdefghij",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_abcdefghijklmnop1234",
        "xai-abcdefghijkl12345",
    ]
    wire.serve([Fault(status=401, message=f"Not these: {' '.join(shapes)} or Bearer eyJhbGciOi.abc")])
    error = wire.fails(Plain(model=wire.model()))
    for shape in (*shapes, "eyJhbGciOi"):
        assert shape not in str(error)
        assert shape not in "".join(traceback.format_exception(error))
    assert "Not these:" in str(error)


def test_ordinary_words_are_not_redacted(wire: Wire) -> None:
    words = "The max_tokens of the task at hand is below the budget_tokens of the key-value cache; skip it."
    wire.serve([Fault(status=403, message=words)])
    assert words.rstrip(".") in str(wire.fails(Plain(model=wire.model(api_key=KEY))))


def test_saved_run_contains_no_api_key(wire: Wire, watch: Watch) -> None:
    wire.serve([call("look", place="here"), call("look", place="there"), finish(result="done")])
    config = {
        **in_the_address(wire),
        "api_key": KEY,
        "extra_headers": {"Authorization": f"Bearer {HEADER}"},
        "extra_body": {"session_token": TOKEN},
        "metadata": {"who": "someone"},
    }

    class Changing(Plain):
        def on_step(self, step: Step) -> None:
            step.model = {**config, "top_p": 0.5}

    loop = new_machine(Changing(model=config), (), {})
    loop.start(0.0)
    while asks := loop.asks(0.0):
        watch.add(json.dumps(save(loop)))
        ask = asks[0]
        loop.begin(ask.id, 0.0)
        match ask:
            case AskModel():
                outcome: Any = ask.model.complete(ask.request)
                watch.add(ask, ask.model, ask.request, outcome)
            case AskTool():
                outcome = call_tool(ask)
            case AskHook():
                outcome = ask.function(*ask.arguments)
            case _:
                raise AssertionError(ask)
        loop.tell(ask.id, outcome, 0.0)
    assert loop.run.output == "done"
    assert any('"top_p": 0.5' in text for text in watch.seen)
    watch.add(loop.run, loop.run.history)


def test_api_key_is_absent_from_declaration_error(watch: Watch) -> None:
    for wrong in ({"api_key": KEY}, {"model": "", "api_key": KEY}, {"model": "x", "api_key": KEY, "num_retries": -1}):
        with pytest.raises(Exception, match=r"Plain\.model") as caught:
            Plain(model=wrong)
        watch.add(caught.value, "".join(traceback.format_exception(caught.value)))


def test_refusal_error_contains_no_api_key(wire: Wire, watch: Watch) -> None:
    wire.serve([Reply(refusal="I will not.")])
    error = wire.fails(Plain(model=in_the_dict(wire)))
    watch.add(error, error.run, error.run.history)


def test_values_of_settings_with_secret_names_are_redacted() -> None:
    rows: list[tuple[dict[str, Any], str, str]] = [
        ({"api_key": KEY}, f"a {KEY} b", "a *** b"),
        ({"aws_secret_access_key": KEY, "azure_ad_token": TOKEN}, f"{KEY} {TOKEN}", "*** ***"),
        ({"extra_headers": {"X-Auth": HEADER, "Cookie": f"session={KEY}"}}, f"{HEADER} session={KEY}", "*** ***"),
        ({"extra_headers": {"Authorization": f"Token {HEADER}"}}, f"<{HEADER}>", "<***>"),
        ({"extra_body": {"nested": [{"password": PASSWORD}]}}, PASSWORD, "***"),
        ({"api_base": "https://us%40er:pa%2Fss-word@host"}, "pa/ss-word pa%2Fss-word", "*** ***"),
        ({"api_base": f"https://{USER}:{PASSWORD}@host"}, f"//{USER}:{PASSWORD}@host", "//***@host"),
        ({"api_base": "https://user01:secret1@host"}, "Basic dXNlcjAxOnNlY3JldDE=", "Basic ***"),
        ({"api_base": f"https://{TOKEN}@host"}, f"https://{TOKEN}@host", "https://***@host"),
        ({"api_base": f"https://host/v1?code={QUERY}&v=2"}, f"?code={QUERY}&v=2", "?code=***&v=2"),
        ({"api_base": "https://[broken"}, "nothing", "nothing"),
        ({"max_tokens": "canary", "input_cost_per_token": "canary"}, "canary", "canary"),
        ({"api_key": "short"}, "short", "short"),
    ]
    for config, text, expected in rows:
        with case(config):
            assert Redactor(find_secrets(config)).text(text) == expected


def test_exception_raised_from_model_error_contains_no_api_key(wire: Wire, watch: Watch) -> None:
    wire.serve([Fault(status=401, message=f"Wrong key: {KEY}")])
    error = wire.fails(Plain(model=in_the_dict(wire)))
    try:
        try:
            raise error
        except ModelError as caught:
            raise RuntimeError("the whole task failed") from caught
    except RuntimeError as outer:
        watch.add_error(outer)

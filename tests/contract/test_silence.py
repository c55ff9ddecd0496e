"""Tests of side effects, observed in new processes: a run prints nothing and leaves no thread or connection.

Warnings are errors in these processes, the root logger writes to standard error, and every connection is recorded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.cases import case
from tests.long_version import IS_LONG
from tests.waiting import AGES, PATIENCE

ROOT = Path(__file__).parents[2]

# Record every address that is looked up or connected to, in a list named `connections`.
WATCHED = """
import sys

connections = []

def note(event, args):
    if event == "socket.connect":
        connections.append(args[1])
    elif event == "socket.getaddrinfo":
        connections.append(args[0])

sys.addaudithook(note)
"""

AGENT = """
import asyncio, gc, logging, threading, time
logging.basicConfig(level=logging.WARNING)

from tests.loopback import Fault, Loopback
from acorn import ModelError, module, tool
from acorn.testing import call, finish

@tool
def look(place: str) -> str:
    return f"nothing in {place}"

class Plain(module):
    "You answer."
    final_output = str
    max_steps = 2
    tools = [look]

def answer(request):
    "Looks first, and answers when there is a result."
    has_looked = any(message["role"] != "user" for message in request.body["messages"] if message["role"] != "system")
    return finish(result="done") if has_looked else call("look", place="here")

def agents(server, **extra):
    return [Plain(model=server.openai(**extra)), Plain(model=server.anthropic(**extra))]
"""


def run(script: str) -> None:
    """Run a script that must print nothing, succeed, and end with its last line."""
    code = (
        WATCHED
        + AGENT
        + textwrap.dedent(script)
        + "\nimport os\nos.write(int(sys.argv[1]), str(time.time()).encode())\n"
    )
    execute(code)


def inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LITELLM")}


def execute(code: str) -> None:
    read, write = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, str(write)],
            cwd=ROOT,
            env=inherited(),
            capture_output=True,
            text=True,
            check=False,
            timeout=AGES,
            pass_fds=[write],
        )
        ended = time.time()
        os.close(write)
        said = os.read(read, 100)
    finally:
        os.close(read)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert ended - float(said or ended) < PATIENCE


def test_import_acorn_opens_no_connection_and_imports_no_litellm() -> None:
    execute(
        WATCHED
        + textwrap.dedent("""
        import acorn
        import acorn.testing, acorn.models

        class Plain(acorn.module):
            "You answer."
            model = "openai/gpt-4o"
            final_output = str
            cache = True

        agent = Plain(temperature=0.1)
        repr(agent)
        assert connections == [], connections
        loaded = [name for name in ("litellm", "openai", "httpx", "asyncio", "requests") if name in sys.modules]
        assert loaded == [], loaded
        """)
    )


FIRST_CALLS = """
outcomes = []

def work(agent, way):
    outcomes.append(agent() if way else asyncio.run(agent.acall()))

with Loopback(answer) as server:
    both = agents(server)
    for _ in range(2):
        threads = [threading.Thread(target=work, args=(both[at % 2], at % 4 < 2)) for at in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
assert outcomes == ["done"] * 16, outcomes
gc.collect()
"""

KINDS = """
with Loopback(answer) as server:
    for agent in agents(server):
        assert agent() == "done"
        for _ in range(3):
            assert asyncio.run(agent.acall()) == "done"

        async def many():
            return await asyncio.gather(*(agent.acall() for _ in range(20)))

        assert asyncio.run(many()) == ["done"] * 20

        async def inside():
            return agent()

        assert asyncio.run(inside()) == "done"
    gc.collect()
    loops = [thing for thing in gc.get_objects() if isinstance(thing, asyncio.AbstractEventLoop)]
    assert len(loops) <= 3, loops  # Closed loops are not stored.
with Loopback(lambda request: Fault(status=503)) as server:
    for agent in agents(server, num_retries=1):
        for failing in (agent, lambda: asyncio.run(agent.acall())):
            try:
                failing()
            except ModelError as error:
                assert error.status == 503
            else:
                raise AssertionError("it should have failed")
with Loopback(lambda request: Fault(reset="inside")) as server:
    for agent in agents(server, num_retries=1):
        for failing in (agent, lambda: asyncio.run(agent.acall())):
            try:
                failing()
            except ModelError as error:
                assert error.status is None
with Loopback(lambda request: Fault(delay=240)) as server:
    for agent in agents(server):
        try:
            asyncio.run(asyncio.wait_for(agent.acall(), 0.2))
        except TimeoutError:
            pass
gc.collect()
assert {address[0] if isinstance(address, tuple) else address for address in connections} <= {"127.0.0.1"}
"""


def test_runs_of_each_kind_print_nothing_and_leave_no_threads() -> None:
    """The first calls of this process are made concurrently."""
    run(FIRST_CALLS + KINDS)


@pytest.mark.torture
@pytest.mark.parametrize("lane", ["litellm"], indirect=True)
def test_runs_on_litellm_lane_print_nothing(lane: str) -> None:
    run(LITELLM + FIRST_CALLS)
    run(LITELLM + KINDS)


LITELLM = """
import os, warnings
# LiteLLM does not close the connections of its clients.
warnings.simplefilter("ignore", ResourceWarning)
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import litellm

def ask_litellm(server, **how):
    asked = {key: value for key, value in server.openai().items() if key not in ("num_retries", "lane")}
    return litellm.completion(**asked, messages=[{"role": "user", "content": "Hello?"}], max_retries=0, **how)
"""

CALLS = """
litellm.drop_params = False
with Loopback(answer) as server:
    for agent in agents(server):
        assert agent() == "done"
        for _ in range(2):
            assert asyncio.run(agent.acall()) == "done"
assert litellm.drop_params is False
"""
NATIVE_CALLS = f'os.environ["ACORN_LANE"] = "native"{CALLS}os.environ["ACORN_LANE"] = "litellm"'

UNCHANGED = """
from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER
from litellm.litellm_core_utils.thread_pool_executor import executor

logs = logging.getLogger("LiteLLM")

class Lines(logging.Handler):
    count = 0

    def emit(self, record):
        Lines.count += 1

def state():
    plain = {name: value for name, value in vars(litellm).items() if isinstance(value, (bool, str, float, list))}
    plain.pop("suppress_debug_info")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LITELLM_LOCAL")}
    return [plain, variables, logs.level, {"submit"} & {*vars(executor)}, {*vars(GLOBAL_LOGGING_WORKER)}]

before = str(state())
level, handlers = logs.level, logs.handlers[:]
with Loopback(answer) as server:
    for agent in agents(server):
        assert agent() == "done"
        assert [chunk for chunk in agent.using().stream()]
        assert asyncio.run(agent.acall()) == "done"
    assert str(state()) == before
    logs.setLevel(logging.DEBUG)
    logs.handlers[:], logs.propagate = [Lines()], False
    assert agent() == "done"
    assert Lines.count == 0
    ask_litellm(server)
    assert Lines.count > 0
    logs.setLevel(level)
    logs.handlers[:], logs.propagate = handlers, True
"""

CALLBACKS = """
from litellm.integrations.custom_logger import CustomLogger
from tests.waiting import comes_true

class Ears(CustomLogger):
    heard = 0

    def log_success_event(self, **what):
        Ears.heard += 1

    async def async_log_success_event(self, **what):
        Ears.heard += 1

def hears(count):
    assert comes_true(lambda: Ears.heard == count), Ears.heard
    Ears.heard = 0

litellm.callbacks = [Ears()]
with Loopback(answer) as server, warnings.catch_warnings():
    warnings.simplefilter("ignore")  # LiteLLM's accounting emits many warnings.
    agent = agents(server)[0]

    async def awaited():
        assert await agent.acall() == "done"
        await asyncio.to_thread(hears, 2)

    asyncio.run(awaited())
    assert agent() == "done"
    hears(2)
    assert [chunk for chunk in agent.stream()]
    hears(2)
litellm.callbacks = []
"""

CALLBACK_OF_MODEL = """
from litellm.integrations.custom_logger import CustomLogger
from tests.waiting import comes_true

heard = []

class Ears(CustomLogger):
    def log_success_event(self, **what):
        heard.append(what)

with Loopback(answer) as server:
    listened = agents(server, success_callback=[Ears()])[0]
    assert agents(server)[0]() == "done"
    assert listened() == "done"
    assert comes_true(lambda: len(heard) == 2), heard
"""

# The order matters: the last script hides warnings.
SCRIPTS = [NATIVE_CALLS, CALLS, UNCHANGED, CALLBACK_OF_MODEL, CALLBACKS]


@pytest.mark.parametrize("lane", ["litellm"], indirect=True)
def test_program_that_also_calls_litellm_does_not_notice_acorn(lane: str) -> None:
    """Run all scripts in one process in the short version, because the import of LiteLLM takes seconds."""
    if not IS_LONG:
        run("".join([LITELLM, *SCRIPTS]))
    for script in SCRIPTS if IS_LONG else []:
        with case(script):
            run(LITELLM + script)

"""Fixtures of the behaviour tests: the ways to call a module, and scripted models whose requests are checked.

A test that uses `call` or `script` runs once, with a sync call. A test with the mark `every_way` also runs with a sync
call inside a running event loop and with an async call, because its subject depends on the driver. Tests of the loop,
the history, branches and fallbacks with this mark run in two more ways: acorn sends the conversation as one `<thread>`
document, or the run is saved and loaded after every tell. A test of the message list itself skips the document. The
long version of the tests runs every test in every way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.long_version import IS_LONG
from tests.provider_rules import assert_complete, assert_request_valid, assert_thread_true
from tests.raw_model import RawModel
from tests.saved_tree import SavedTree
from tests.threaded_model import Given, RawThreadedModel, ThreadedModel

from acorn import Run, capture, module
from acorn._call.plan import new_machine
from acorn._drive.sync_driver import drive
from acorn.testing import ScriptedModel

AS_THREAD = "as a thread"
SAVED = "saved and loaded"
EVERY_WAY = ["test_loop.py", "test_history.py", "test_branches.py", "test_model_lists.py"]
SAVED_FILES = list(EVERY_WAY)
if IS_LONG:
    SAVED_FILES += [
        "test_agents_as_tools.py",
        "test_hooks.py",
        "test_on_start.py",
        "test_limits.py",
        "test_content_parts.py",
        "test_media.py",
    ]


class Call:
    """Call a module in one of the ways."""

    def __init__(self, way: str) -> None:
        self.way = way
        self._given = Given()

    def scripted(self, replies: Any, **options: Any) -> ScriptedModel:
        """Return a model for this way; its `requests` have the messages in all ways."""
        if self.way == AS_THREAD:
            return ThreadedModel(replies, self._given, **options)
        return ScriptedModel(replies, **options)

    def raw(self, responses: Any, **options: Any) -> RawModel:
        """Return a model with exact responses for this way."""
        return (
            RawThreadedModel(responses, self._given, **options)
            if self.way == AS_THREAD
            else RawModel(responses, **options)
        )

    def __call__(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Return the output of `agent(...)`."""
        return self.run(agent, *args, **kwargs).output

    def run(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Run[Any]:
        """Return the record of `agent.run(...)`."""
        if self.way == AS_THREAD:
            agent.history_format = "thread"
        if self.way in ("sync", AS_THREAD):
            return agent.run(*args, **kwargs)
        if self.way == SAVED:
            return self._saved(agent, *args, **kwargs)
        if self.way == "async":
            return asyncio.run(self._async(agent, *args, **kwargs))
        return asyncio.run(self._inside(agent, *args, **kwargs))

    def _saved(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Run[Any]:
        loop = new_machine(agent, args, kwargs)
        drive(SavedTree(loop), loop.run.id)
        return loop.run

    async def _async(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Run[Any]:
        return await agent.arun(*args, **kwargs)

    async def _inside(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Run[Any]:
        return agent.run(*args, **kwargs)


@pytest.fixture(params=["sync", "inside a loop", "async", AS_THREAD, SAVED])
def call(request: pytest.FixtureRequest) -> Call:
    return Call(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the ways that add nothing or cannot hold the tested data.

    A document has no message list, and a saved run has no live objects.
    """
    spared = {item for item in items if _is_spared(item)}
    if spared:
        config.hook.pytest_deselected(items=list(spared))
        items[:] = [item for item in items if item not in spared]


def _is_spared(item: pytest.Item) -> bool:
    if _way(item) not in (None, "sync") and not IS_LONG and item.get_closest_marker("every_way") is None:
        return True
    if _way(item) == AS_THREAD:
        is_sent_so = IS_LONG or item.path.name in EVERY_WAY
        return not is_sent_so or item.get_closest_marker("message_list") is not None
    is_saved = item.path.name in SAVED_FILES and item.get_closest_marker("live_objects") is None
    return _way(item) == SAVED and not is_saved


def _way(item: pytest.Item) -> Any:
    spec = getattr(item, "callspec", None)
    return None if spec is None else spec.params.get("call")


Script = Callable[..., ScriptedModel]


@pytest.fixture
def script(request: pytest.FixtureRequest) -> Iterator[Script]:
    """Make scripted models and check every request, script and history afterwards."""
    models: list[ScriptedModel] = []
    way: Call = request.getfixturevalue("call") if "call" in request.fixturenames else Call("sync")

    def make(*replies: Any, **options: Any) -> ScriptedModel:
        made = replies[0] if len(replies) == 1 and callable(replies[0]) else replies
        models.append(way.scripted(made, **options))
        return models[-1]

    with capture() as runs:
        yield make
    for model in models:
        model.done()
        for sent in model.requests:
            assert_request_valid(sent)
    for run in runs:
        assert_complete(run.history)
        assert_thread_true(run, is_edited=request.node.get_closest_marker("edits_history") is not None)

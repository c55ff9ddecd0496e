"""Behaviour runs three ways: sync, sync inside a running event loop, async. A promise holds in all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.provider_rules import assert_complete, assert_request_valid, assert_thread_true

from acorn import Run, capture, module
from acorn.testing import ScriptedModel


class Call:
    """Calls a module in one of the three ways."""

    def __init__(self, way: str) -> None:
        self.way = way

    def __call__(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Any:
        """The output of `agent(...)`."""
        return self.run(agent, *args, **kwargs).output

    def run(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Run[Any]:
        """The record of `agent.run(...)`."""
        if self.way == "sync":
            return agent.run(*args, **kwargs)
        if self.way == "async":
            return asyncio.run(self._async(agent, *args, **kwargs))
        return asyncio.run(self._inside(agent, *args, **kwargs))

    async def _async(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Run[Any]:
        return await agent.arun(*args, **kwargs)

    async def _inside(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Run[Any]:
        return agent.run(*args, **kwargs)


@pytest.fixture(params=["sync", "inside a loop", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    return Call(request.param)


Script = Callable[..., ScriptedModel]


@pytest.fixture
def script(request: pytest.FixtureRequest) -> Iterator[Script]:
    """Makes scripted models; afterwards every request, every script and every history is judged."""
    models: list[ScriptedModel] = []

    def make(*replies: Any, **options: Any) -> ScriptedModel:
        made = replies[0] if len(replies) == 1 and callable(replies[0]) else replies
        models.append(ScriptedModel(made, **options))
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

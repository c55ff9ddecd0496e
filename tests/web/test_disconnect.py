"""Tests of clients that disconnect: runs are cancelled, their slots are free again, and streams leave nothing open."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.cases import case
from tests.waiting import comes_true
from tests.web.desk import Desk
from tests.web.serve.server import app, asked

from acorn import module, tool
from acorn.stores import MemoryStore
from acorn.testing import ScriptedModel, call, finish
from acorn.web.page.agent import StartRequest
from acorn.web.page.routes import page_app
from acorn.web.page.site import Site, make_site


class Client:
    """A client of an ASGI application that can disconnect at any time."""

    def __init__(self, service: Any, method: str, path: str, body: object, spec_version: str = "2.3") -> None:
        self.messages: list[Any] = []
        self.first_event = asyncio.Event()
        self._gone = asyncio.Event()
        self._bodies = [json.dumps(body).encode()]
        headers = {
            "host": "127.0.0.1",
            "origin": "http://127.0.0.1",
            "content-type": "application/json",
            "authorization": "Bearer a-key-for-tests-and-nothing-else",
        }
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "asgi": {"version": "3.0", "spec_version": spec_version},
        }
        self._raises = spec_version >= "2.4"
        self.request = asyncio.ensure_future(service(scope, self._receive, self._send))

    def disconnect(self) -> None:
        self._gone.set()

    async def _receive(self) -> Any:
        if self._bodies:
            return {"type": "http.request", "body": self._bodies.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._gone.is_set() and self._raises:
            raise OSError("the client has disconnected")
        self.messages.append(message)
        if message.get("body"):
            self.first_event.set()


class Stages:
    """An agent whose tool and whose `on_finish` wait, and the events of its run."""

    def __init__(self) -> None:
        self.tool_started, self.tool_go, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        stages = self

        @tool
        async def look() -> str:
            """Look."""
            stages.tool_started.set()
            await stages.tool_go.wait()
            return "seen"

        class Slow(module[str, str]):
            """Wait."""

            model = ScriptedModel(lambda request: finish("done") if len(request.messages) > 2 else call("look"))
            tools = [look]
            max_steps = 3

            async def on_finish(self, output: str) -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0)  # The server waits until the cleanup of the run is complete.
                    stages.cancelled.set()

        self.agent = Slow()


def test_disconnected_client_frees_slot_after_run_has_ended() -> None:
    async def main(path: str, body: object) -> None:
        stages = Stages()
        service = app(stages.agent, concurrency=1)
        client = Client(service, "POST", path, body)
        stages.tool_go.set()
        await stages.tool_started.wait()
        busy = await asked(service, "POST", "/run", content=b'"x"')
        assert busy.status_code == 429
        client.disconnect()
        await client.request
        assert stages.cancelled.is_set()
        invalid = await asked(service, "POST", "/run", content=b"5")
        assert invalid.status_code == 422  # The slot is free, so the service reads the input.

    chat = {"messages": [{"role": "user", "content": "x"}]}
    for path, body in (
        ("/run", "x"),
        ("/stream", "x"),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", chat | {"stream": True}),
    ):
        with case(path, body):
            asyncio.run(main(path, body))


def test_server_that_raises_os_error_after_disconnect_cancels_run() -> None:
    async def main() -> None:
        stages = Stages()
        client = Client(app(stages.agent), "POST", "/stream", "x", spec_version="2.4")
        await client.first_event.wait()
        client.disconnect()
        stages.tool_go.set()  # The next event fails to be sent.
        await client.request
        await asyncio.wait_for(stages.cancelled.wait(), 60)

    asyncio.run(main())


def test_disconnected_browser_leaves_no_open_stream() -> None:
    async def main(name: str) -> None:
        site: Site = make_site(Desk(), MemoryStore())
        page = page_app(site, ["127.0.0.1"], None)
        run_id = site.start(StartRequest(input={"question": "sleep"}))
        assert await asyncio.to_thread(comes_true, lambda: site.index.view(run_id) is not None)
        client = Client(page, "GET", f"/api/runs/{run_id}/{name}", None)
        await client.first_event.wait()
        client.disconnect()
        await client.request
        assert asyncio.all_tasks() == {asyncio.current_task()}
        site.close()

    for name in ("stream", "rows"):
        with case(name):
            asyncio.run(main(name))

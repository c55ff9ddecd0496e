"""The HTTP endpoints of the page, and the ASGI application that protects them with access checks."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, get_args

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp

import acorn
from acorn import AcornError, InputError, StoreError, module
from acorn._inside import Redactor, describe_blobs, describe_error, shorten, to_json_text
from acorn.stores.port import Status, Store
from acorn.types import JsonObject, is_json_object
from acorn.web.guard import LOOPBACK, BodyTimeoutError, BodyTooLargeError, PageGuard
from acorn.web.page import NO_LIMIT, STREAM_LIMIT, TEXT_LIMIT
from acorn.web.page.agent import agent_json, read_fork_request
from acorn.web.page.align import align
from acorn.web.page.files import SHELL, StaticFile, read_static_files, row_details
from acorn.web.page.rows import Row, entry_event
from acorn.web.page.run_index import RunFilter, RunView, StoreRunIndex
from acorn.web.page.site import BusyError, Site, make_site
from acorn.web.page.streams import STORED_PREFIX, live_events, row_events, stored_events

_LIST_LIMIT = 200
"""The maximum number of characters of one text in the list of runs."""
_MAX_EARLIER_RUNS = 20

Endpoint = Callable[[Request], Awaitable[Response]]


class _RequestError(Exception):
    """An error that rejects a request with an HTTP status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def make_router(site: Site) -> Router:
    """Return a router for the HTML page, the static files and the API endpoints."""
    api = _Api(site)
    static = read_static_files()

    async def get_page(request: Request) -> Response:
        return _shell_response(static[SHELL], str(request.scope.get("root_path", "")))

    async def get_static(request: Request) -> Response:
        file = static.get(request.path_params["name"])
        if file is None:
            return _json(404, site.redactor(), {"error": "This static file does not exist."})
        return _file_response(file, request)

    async def not_found(request: Request) -> Response:
        return _json(404, site.redactor(), {"error": "This address does not exist."})

    gets: Mapping[str, Endpoint] = {
        "/api/agent": api.agent,
        "/api/runs": api.runs,
        "/api/requests": api.requests,
        "/api/runs/{id}/stream": api.stream,
        "/api/runs/{id}/view": api.view,
        "/api/runs/{id}/rows": api.rows,
        "/api/runs/{id}/details": api.details,
        "/api/runs/{id}/sent": api.sent,
        "/api/runs/{id}/find": api.find,
        "/api/runs/{id}/conversation": api.conversation,
        "/api/runs/{id}/file": api.file,
        "/api/runs/{id}/fork": api.fork,
        "/api/runs/{id}/python": api.python,
        "/api/compare": api.compare,
        "/api/fleet": api.fleet,
    }
    posts: Mapping[str, Endpoint] = {
        "/api/runs": api.start,
        "/api/runs/{id}/stop": api.stop,
        "/api/runs/{id}/resume": api.resume,
        "/api/requests/{id}": api.answer,
    }
    routes = [Route(path, get_page) for path in ("/", "/runs/", "/runs/{id}", "/compare", "/fork", "/fleet")]
    routes += [Route("/static/{name}", get_static)]
    routes += [Route(path, api.with_error_responses(endpoint)) for path, endpoint in gets.items()]
    routes += [Route(path, api.with_error_responses(endpoint), methods=["POST"]) for path, endpoint in posts.items()]
    routes += [Route("/api/runs/{id}", api.with_error_responses(api.delete), methods=["DELETE"])]
    return Router([*routes, Route("/{rest:path}", not_found, methods=["GET", "HEAD", "POST", "DELETE"])])


def _file_response(file: StaticFile, request: Request) -> Response:
    """Return a response that contains a static file.

    If the browser already has the current version in its cache, return a response with status 304 instead.
    """
    headers = {"etag": file.etag, "cache-control": "no-cache", "content-type": file.content_type}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers)


def _shell_response(file: StaticFile, mount: str) -> Response:
    """Return a response that contains the HTML page.

    The mount path is inserted into the page, so that the scripts of the page can find the API.
    """
    body = file.body.replace(b"{{base}}", escape(mount, quote=True).encode())
    return Response(body, headers={"content-type": file.content_type, "cache-control": "no-cache"})


def _json(
    status: int,
    redactor: Redactor,
    value: object,
    limit: int = TEXT_LIMIT,
    headers: Mapping[str, str] | None = None,
) -> Response:
    return Response(to_json_text(redactor.data(value, limit)), status, headers, media_type="application/json")


class _Api:
    """The API endpoints of the page.

    Each public method except `with_error_responses` handles the requests to one path.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    def with_error_responses(self, endpoint: Endpoint) -> Endpoint:
        """Wrap an endpoint so that exceptions become JSON error responses."""

        async def respond(request: Request) -> Response:
            headers: dict[str, str] = {}
            try:
                return await endpoint(request)
            except _RequestError as error:
                status, body = error.status, {"error": str(error)}
            except BodyTooLargeError:
                status, body = 413, {"error": "The request body is too large."}
            except BodyTimeoutError as error:
                # Close the connection, because the client may never finish the body.
                headers, status, body = {"connection": "close"}, 408, {"error": str(error)}
            except InputError as error:
                return _json(422, self._site.redactor(), {"error": str(error), "problems": error.problems})
            except AcornError as error:
                status = 429 if isinstance(error, BusyError) else 409 if isinstance(error, StoreError) else 422
                body = {"error": str(error)}
            except Exception as error:
                # A file or a store may contain damaged or malicious data.
                is_read = request.method in ("GET", "HEAD")
                problem = "The page cannot display the data, which may be damaged" if is_read else "The request failed"
                status, body = 409 if is_read else 500, {"error": f"{problem}: {shorten(describe_error(error))}"}
            return _json(status, self._site.redactor(), body, headers=headers)

        return respond

    def _ok(self, value: object, limit: int = TEXT_LIMIT) -> Response:
        return _json(200, self._site.redactor(), value, limit)

    # Endpoints of the agent and its live runs

    async def agent(self, request: Request) -> Response:
        site = self._site
        agent = None if site.agent is None else await run_in_threadpool(agent_json, site.agent)
        return self._ok(
            {"agent": agent, "store": site.index.name, "fleet": site.has_fleet, "version": acorn.__version__}
        )

    async def start(self, request: Request) -> Response:
        body = await _read_body(request, {"input", "after", "model", "fork"})
        after, model = _optional_text(body, "after"), _optional_text(body, "model")
        fork = read_fork_request(body["fork"]) if "fork" in body else None
        if fork is not None and (after or "input" in body):
            raise _RequestError(422, "A fork uses the input of its original run. Remove `input` and `after`.")
        run_id = await run_in_threadpool(self._site.start, body.get("input", {}), after, model, fork)
        return _json(201, self._site.redactor(), {"id": run_id})

    async def stop(self, request: Request) -> Response:
        run_id = request.path_params["id"]
        if run_id not in self._site.live_runs:  # The store may not contain a new run yet.
            await self._view(request)
        await run_in_threadpool(self._site.stop, run_id)
        return self._ok({})

    async def resume(self, request: Request) -> Response:
        await run_in_threadpool(self._site.resume, request.path_params["id"])
        return self._ok({})

    async def answer(self, request: Request) -> Response:
        body = await _read_body(request, {"value"})
        is_resumed = await run_in_threadpool(self._site.answer, request.path_params["id"], body.get("value"))
        return self._ok({"resumed": is_resumed})

    async def requests(self, request: Request) -> Response:
        return self._ok({"requests": await run_in_threadpool(self._site.requests)})

    async def delete(self, request: Request) -> Response:
        await run_in_threadpool(self._site.delete, request.path_params["id"])
        return self._ok({})

    # Endpoints of stored runs

    async def runs(self, request: Request) -> Response:
        query = request.query_params
        status = query.getlist("status")
        if unknown := [name for name in status if name not in get_args(Status)]:
            known = ", ".join(get_args(Status))
            raise _RequestError(422, f"`{unknown[0]}` is not a run status. Use one of {known}.")
        try:
            before = datetime.fromisoformat(query["before"]) if query.get("before") else None
        except ValueError:
            raise _RequestError(
                422, "`before` must be an ISO 8601 time, such as `2026-01-31T12:00:00+00:00`."
            ) from None
        if before is not None and before.tzinfo is None:
            before = before.replace(tzinfo=UTC)
        text, redactor = query.get("q", "").strip(), self._site.redactor()
        conditions = RunFilter(status, query.get("agent") or None, text, before)
        runs = await run_in_threadpool(self._site.index.list_runs, conditions, redactor)
        return _json(200, redactor, runs._asdict(), _LIST_LIMIT)

    async def conversation(self, request: Request) -> Response:
        """Return the earlier runs of the conversation that a run belongs to."""
        index = self._site.index
        view = await run_in_threadpool(index.view, request.path_params["id"])
        batch = None if view is None else view.header.get("batch")
        if view is None or not isinstance(batch, str) or not isinstance(index, StoreRunIndex):
            return self._ok({"runs": []})
        return self._ok({"runs": await run_in_threadpool(_earlier_runs, index, batch, view)}, STREAM_LIMIT)

    async def view(self, request: Request) -> Response:
        view, redactor = await self._view(request), self._site.redactor()
        is_waiting = view.status == "waiting"
        requests = await run_in_threadpool(self._site.requests, str(view.header["id"])) if is_waiting else []
        is_own = self._site.is_own(view)
        body = await run_in_threadpool(view_json, view, redactor, is_own=is_own, requests=requests)
        return Response(body, media_type="application/json")

    async def details(self, request: Request) -> Response:
        view = await self._view(request)
        return self._ok(row_details(view.rows, _requested_row(view, request)))

    async def sent(self, request: Request) -> Response:
        view = await self._view(request)
        sent = view.rows.request_of(_requested_row(view, request))
        if sent is None:
            raise _RequestError(404, "This row is not a model request.")
        messages, entry = sent
        return self._ok(
            {
                "messages": describe_blobs(messages),
                "model": entry.model,
                "forced": entry.forced,
                "count": entry.messages,
                "exact": len(messages) == entry.messages,
            }
        )

    async def find(self, request: Request) -> Response:
        view, text = await self._view(request), request.query_params.get("q", "").strip()
        rows = await run_in_threadpool(view.search, text, self._site.redactor()) if text else []
        return self._ok({"rows": rows})

    async def file(self, request: Request) -> Response:
        """Return a run as a JSON file that the command `acorn show` can open. Secrets are redacted."""
        site, view = self._site, await self._view(request)
        if site.store is None:
            saved = {"run": view.header, "journal": [entry_event(entry) for entry in view.rows.entries]}
        else:
            run = await run_in_threadpool(acorn.runs(site.store).get, view.header["id"])
            saved = json.loads(run.to_json())
        name = "".join(char for char in str(view.header["id"]) if char.isascii() and (char.isalnum() or char in "-_"))
        headers = {"content-disposition": f'attachment; filename="{name or "run"}.json"'}
        return await run_in_threadpool(_json, 200, site.redactor(), saved, NO_LIMIT, headers)

    # Endpoints for forks, Python tests, comparisons and workers

    async def fork(self, request: Request) -> Response:
        """Return the events that a fork of a run would copy, and the tools that it may call again.

        A fork is a new run that starts with the first steps of another run.
        """
        text = request.query_params.get("before", "")
        before = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
        run_id = (await self._view(request)).header["id"]
        return self._ok(await run_in_threadpool(self._site.describe_fork, run_id, before), TEXT_LIMIT + 1)

    async def python(self, request: Request) -> Response:
        run_id = (await self._view(request)).header["id"]
        return self._ok({"text": await run_in_threadpool(self._site.python, run_id)}, NO_LIMIT)

    async def compare(self, request: Request) -> Response:
        """Return the rows of two runs, with pairs of corresponding rows."""
        left = await self._view(request, request.query_params.get("a", ""))
        right = await self._view(request, request.query_params.get("b", ""))
        comparison = await run_in_threadpool(_compare, left, right, self._site.redactor())
        return Response(to_json_text(comparison), media_type="application/json")

    async def fleet(self, request: Request) -> Response:
        fleet = await run_in_threadpool(self._site.fleet)
        if fleet is None:
            raise _RequestError(
                404, f"The store {self._site.index.name} does not support workers. Use a PostgreSQL store."
            )
        return self._ok(fleet)

    async def _view(self, request: Request, run_id: str | None = None) -> RunView:
        requested_id = request.path_params["id"] if run_id is None else run_id
        view = await run_in_threadpool(self._site.index.view, requested_id)
        if view is None:
            raise _RequestError(404, "This run does not exist. It may have been deleted.")
        return view

    # Endpoints that stream events

    async def stream(self, request: Request) -> Response:
        """Stream those events of a run that the browser has not received yet."""
        run_id, site = request.path_params["id"], self._site
        live = site.live_runs.get(run_id)
        token, _, text = _last_event_id(request, "").partition("-")
        index = _number(text)
        if live is not None:
            return _event_stream(live_events(site, live, index if token == live.token else 0))
        view = await self._view(request)
        return _event_stream(stored_events(site, view, index if token == STORED_PREFIX else 0))

    async def rows(self, request: Request) -> Response:
        """Stream the changed rows of a run until the run is over."""
        view = await self._view(request)
        version = _number(_last_event_id(request, request.query_params.get("after", "0")))
        return _event_stream(row_events(self._site, view, version))


def view_json(view: RunView, redactor: Redactor, *, is_own: bool = False, requests: Sequence[JsonObject] = ()) -> str:
    """Return the header, the rows and the unanswered requests for human input of a run as encoded JSON.

    The page requests the details of a row separately.
    """
    with view.lock:
        rows = [row.to_json(redactor) for row in view.rows.all]
        header = redactor.data({**view.current_header(), "own": is_own})
        version = len(view.rows.entries)
    return to_json_text({"head": header, "rows": rows, "version": version, "requests": redactor.data(list(requests))})


def _compare(left: RunView, right: RunView, redactor: Redactor) -> JsonObject:
    with ExitStack() as locks:
        for lock in sorted({left.lock, right.lock}, key=id):  # A fixed order prevents deadlocks.
            locks.enter_context(lock)
        pairs = align(left.rows, right.rows)
        sides = [
            {"head": redactor.data(view.current_header()), "rows": [row.to_json(redactor) for row in view.rows.all]}
            for view in (left, right)
        ]
    return {
        "a": sides[0],
        "b": sides[1],
        "pairs": [
            [pair.left and pair.left.id, pair.right and pair.right.id, pair.depth, int(pair.is_same)] for pair in pairs
        ],
    }


def _earlier_runs(index: StoreRunIndex, batch: str, view: RunView) -> list[JsonObject]:
    item = view.header.get("item") or 0
    earlier = [facts for facts in index.runs_of(batch) if (facts.item or 0) < item and facts.status == "done"]
    views = [index.view(facts.id) for facts in earlier[-_MAX_EARLIER_RUNS:]]
    return [
        {name: earlier_view.header.get(name) for name in ("id", "input", "output")}
        for earlier_view in views
        if earlier_view is not None
    ]


def _requested_row(view: RunView, request: Request) -> Row:
    number = _number(request.query_params.get("row", ""), -1)
    if not 0 <= number < len(view.rows.all):
        raise _RequestError(404, "This run does not contain the requested row.")
    return view.rows.all[number]


def _number(text: str, default: int = 0) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else default


async def _read_body(request: Request, known: set[str]) -> JsonObject:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise _RequestError(422, "The request body must be valid JSON.") from None
    if not is_json_object(body):
        raise _RequestError(422, "The request body must be a JSON object.")
    if unknown := sorted(body.keys() - known):
        raise _RequestError(422, f"The request body contains the unknown key `{unknown[0]}`. Remove the key.")
    return body


def _optional_text(body: Mapping[str, object], name: str) -> str | None:
    text = body.get(name)
    if text is not None and not isinstance(text, str):
        raise _RequestError(422, f"`{name}` in the request body must be a string.")
    return text or None


def _last_event_id(request: Request, default: str) -> str:
    """Return the id of the last event that the browser received.

    A browser that reconnects sends the id in a header. The script of the page sends the id as a query parameter.
    """
    return request.headers.get("last-event-id") or request.query_params.get("from") or default


def _event_stream(messages: AsyncGenerator[bytes]) -> Response:
    return StreamingResponse(messages, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def page_app(site: Site, hosts: Collection[str], key: str | None) -> ASGIApp:
    """Return an ASGI application that serves the page and rejects unauthorized requests."""
    return PageGuard(make_router(site), hosts, key)


def app(
    agent: module[Any, Any] | None = None,
    *,
    store: str | Path | Store | None = None,
    files: Sequence[Path] = (),
    key: str | None = None,
    hosts: Collection[str] = LOOPBACK,
) -> ASGIApp:
    """Return an ASGI application that serves the page for an agent, a store or files with saved runs.

        app = acorn.web.app(Researcher(), store="runs.db", key=os.environ["PAGE_KEY"])

    Without `store`, the page uses the store of the agent. If the agent has no store, the page stores runs in memory.
    `key` is an access key: a browser logs in at `/login?key=...`. Without `key`, everyone who can reach the application
    can use it, so protect it with your own login. The application rejects requests to host names that are not in
    `hosts`.
    """
    return page_app(make_site(agent, store, files), hosts, key)

"""The HTTP endpoints of the page, and the ASGI application that protects them with access checks."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

import acorn
from acorn import AcornError, DeclarationError, InputError, StoreError, module
from acorn._inside import Redactor, describe_error, is_instance, shorten, to_json_text
from acorn._inside.run_tree import Row
from acorn.stores.port import Status, Store
from acorn.types import JsonObject
from acorn.web import guard
from acorn.web.guard import LOOPBACK
from acorn.web.page import NO_LIMIT, STREAM_LIMIT, TEXT_LIMIT
from acorn.web.page.agent import StartRequest, agent_json
from acorn.web.page.files import SHELL, read_static_files, row_details, sent_json
from acorn.web.page.rows import align, entry_event
from acorn.web.page.run_index import RunFilter, RunView
from acorn.web.page.site import BusyError, Site, make_site
from acorn.web.page.streams import read_number, row_events, run_events

_LIST_LIMIT = 200
"""The maximum number of characters of one text in the list of runs."""

_MAX_INPUT = 28_000_000
"""The maximum number of bytes of a new run, which may contain images and files. base64 enlarges them by a third."""


def _max_body(path: str) -> tuple[int, str]:
    if path == "/api/runs":
        message = "The images and files of an input are too large. They may have at most 20 MB in total."
        return _MAX_INPUT, message
    return guard.too_large(guard.MAX_BODY)


def page_app(
    site: Site, hosts: Collection[str], key: str | None, *, body_timeout: float = guard.BODY_SECONDS
) -> Starlette:
    """Return an application that serves the page and rejects unauthorized requests.

    A complete request body must arrive within `body_timeout` seconds. Large bodies get more time.
    """
    routes = [*_file_routes(), Route("/login", partial(_log_in, key)), *_api_routes(site)]
    return guard.guarded_app(routes, page_rules(hosts, key, body_timeout), partial(_error_response, site))


def page_rules(hosts: Collection[str], key: str | None, body_timeout: float) -> guard.AccessRules:
    """Return the rules of access to the page."""
    if key is not None:
        guard.check_key(key, "`acorn.web.app`")
    return guard.AccessRules(
        hosts=guard.normalize_hosts(hosts, "`acorn.web.app`"),
        keys=() if key is None else (guard.AccessKey(key),),
        find_keys=_cookie_keys,
        missing_key="The key is missing. Open the address that `acorn web` printed when it started.",
        public_path="/login",
        methods=("GET", "HEAD", "POST", "DELETE"),
        needs_origin=True,
        max_body=_max_body,
        body_timeout=body_timeout,
    )


# Login


def _cookie_name(request: Request) -> str:
    """Return the name of the login cookie.

    The name contains the port, because a browser sends the cookies of a host to all its ports.
    """
    server: tuple[str, int | None] = request.scope.get("server") or ("", 0)
    return f"acorn_{server[1] or 0}"


def _cookie_keys(request: Request) -> list[str]:
    """Return all keys in the login cookies of a request.

    There may be several, because another page on the same host may have set a cookie with the same name. Starlette
    would return only one of them.
    """
    pairs = [pair.strip().partition("=") for header in request.headers.getlist("cookie") for pair in header.split(";")]
    return [value.strip('"') for name, _, value in pairs if name == _cookie_name(request)]


async def _log_in(key: str | None, request: Request) -> Response:
    """Check the access key in the login URL, set it as a cookie, and open the page.

    The response is a small HTML page that loads the target page. After a redirect, the browser would not send the
    cookie if a local file had opened the login URL, because the cookie has the attribute `SameSite=Strict`.
    """
    query, mount = request.query_params, str(request.scope.get("root_path", ""))
    if key is not None and not guard.find_key([query.get("key", "")], [guard.AccessKey(key)]):
        raise HTTPException(401, "The key is wrong. Open the address that `acorn web` printed at its last start.")
    target = query.get("next", "/")
    is_local = target.startswith("/") and not target.startswith("//") and target.isprintable() and "\\" not in target
    refresh = f'<meta http-equiv="refresh" content="0;url={escape(mount + (target if is_local else "/"))}">'
    icon = '<link rel="icon" href="data:,">'  # Prevents a failing request to `/favicon.ico`.
    response = HTMLResponse(f'<!doctype html><html lang="en"><title>acorn</title>{icon}{refresh}</html>')
    response.set_cookie(_cookie_name(request), key or "", httponly=True, samesite="strict", path=mount or "/")
    return response


# Files


def _file_routes() -> list[Route]:
    static = read_static_files()

    async def get_page(request: Request) -> Response:
        # The scripts of the page need the mount path to find the API.
        mount = escape(str(request.scope.get("root_path", "")), quote=True)
        body = static[SHELL].body.replace(b"{{base}}", mount.encode())
        return Response(body, headers={"content-type": static[SHELL].content_type, "cache-control": "no-cache"})

    async def get_static(request: Request) -> Response:
        file = static.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404, "This static file does not exist.")
        headers = {"etag": file.etag, "cache-control": "no-cache", "content-type": file.content_type}
        if request.headers.get("if-none-match") == file.etag:  # The cache of the browser contains the file.
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers)

    pages = ("/", "/runs/", "/runs/{id}", "/compare", "/fork", "/fleet")
    return [*(Route(path, get_page) for path in pages), Route("/static/{name}", get_static)]


def _json(data: JsonObject, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response that contains JSON data. Secrets must be redacted before."""
    return Response(to_json_text(data), status, headers, media_type="application/json")


async def _error_response(site: Site, request: Request, error: Exception) -> Response:
    """Return the response for an error: JSON for a path of the API, and text for other paths."""
    status, message, headers, problems = 422, str(error), None, JsonObject()
    match error:
        case HTTPException():
            status, message, headers = error.status_code, error.detail, error.headers
            if not guard.path_below_mount(request.scope).startswith("/api/"):
                return PlainTextResponse(f"{message}\n", status, headers)
        case InputError():
            problems = {"problems": error.problems}
        case BusyError():
            status = 429
        case StoreError():
            status = 409
        case AcornError():
            pass
        case _:  # A file or a store may contain damaged or malicious data.
            is_read = request.method in ("GET", "HEAD")
            problem = "The page cannot display the data, which may be damaged" if is_read else "The request failed"
            status, message = 409 if is_read else 500, f"{problem}: {shorten(describe_error(error))}"
    return _json(site.redactor().data({"error": message, **problems}), status, headers)


def _api_routes(site: Site) -> list[Route]:
    api = _Api(site)
    return [
        Route("/api/agent", api.agent),
        Route("/api/runs", api.runs),
        Route("/api/runs", api.start, methods=["POST"]),
        Route("/api/runs/{id}", api.delete, methods=["DELETE"]),
        Route("/api/runs/{id}/stop", api.stop, methods=["POST"]),
        Route("/api/runs/{id}/resume", api.resume, methods=["POST"]),
        Route("/api/runs/{id}/stream", api.stream),
        Route("/api/runs/{id}/view", api.view),
        Route("/api/runs/{id}/rows", api.rows),
        Route("/api/runs/{id}/details", api.details),
        Route("/api/runs/{id}/sent", api.sent),
        Route("/api/runs/{id}/find", api.find),
        Route("/api/runs/{id}/conversation", api.conversation),
        Route("/api/runs/{id}/file", api.file),
        Route("/api/runs/{id}/fork", api.fork),
        Route("/api/runs/{id}/python", api.python),
        Route("/api/requests", api.requests),
        Route("/api/requests/{id}", api.answer, methods=["POST"]),
        Route("/api/compare", api.compare),
        Route("/api/fleet", api.fleet),
    ]


class AnswerBody(BaseModel, extra="forbid"):
    """The body of a request that answers a request for human input."""

    value: object = None


Body = TypeVar("Body", bound=BaseModel)


class _Api:
    """The API endpoints of the page. Each public method handles the requests to one path.

    Starlette runs the methods that are not `async` in a thread, because they read stores.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    def _ok(self, value: object, limit: int = TEXT_LIMIT) -> Response:
        return _json(self._site.redactor().data(value, limit))

    # Endpoints of the agent and its live runs

    def agent(self, request: Request) -> Response:
        site = self._site
        agent, names = site.agent and agent_json(site.agent), {"store": site.index.name, "version": acorn.__version__}
        return self._ok({"agent": agent, "fleet": site.has_fleet, **names})

    async def start(self, request: Request) -> Response:
        body = await _read_body(request, StartRequest)
        if body.fork is not None and (body.after or "input" in body.model_fields_set):
            raise HTTPException(422, "A fork uses the input of its original run. Remove `input` and `after`.")
        return _json({"id": await run_in_threadpool(self._site.start, body)}, 201)

    def stop(self, request: Request) -> Response:
        run_id = request.path_params["id"]
        if run_id not in self._site.live_runs:  # The store may not contain a new run yet.
            self._view(request)
        self._site.stop(run_id)
        return self._ok({})

    def resume(self, request: Request) -> Response:
        self._site.resume(request.path_params["id"])
        return self._ok({})

    async def answer(self, request: Request) -> Response:
        body = await _read_body(request, AnswerBody)
        is_resumed = await run_in_threadpool(self._site.answer, request.path_params["id"], body.value)
        return self._ok({"resumed": is_resumed})

    def requests(self, request: Request) -> Response:
        return self._ok({"requests": self._site.requests()})

    def delete(self, request: Request) -> Response:
        self._site.delete(request.path_params["id"])
        return self._ok({})

    # Endpoints of stored runs

    def runs(self, request: Request) -> Response:
        query = request.query_params
        status = query.getlist("status")
        if unknown := [name for name in status if name not in get_args(Status)]:
            known = ", ".join(get_args(Status))
            raise HTTPException(422, f"`{unknown[0]}` is not a run status. Use one of {known}.")
        try:
            before = datetime.fromisoformat(query["before"]) if query.get("before") else None
        except ValueError:
            raise HTTPException(
                422, "`before` must be an ISO 8601 time, such as `2026-01-31T12:00:00+00:00`."
            ) from None
        if before is not None and before.tzinfo is None:
            before = before.replace(tzinfo=UTC)
        text, redactor = query.get("q", "").strip(), self._site.redactor()
        conditions = RunFilter(status, query.get("agent") or None, text, before)
        runs = self._site.index.list_runs(conditions, redactor)
        return _json(redactor.data(runs._asdict(), _LIST_LIMIT))

    def conversation(self, request: Request) -> Response:
        """Return the earlier runs of the conversation that a run belongs to."""
        return self._ok({"runs": self._site.earlier_runs(request.path_params["id"])}, STREAM_LIMIT)

    def view(self, request: Request) -> Response:
        return _json(self._site.page_data(self._view(request)))

    def details(self, request: Request) -> Response:
        view = self._view(request)
        return self._ok(row_details(view.tree, _requested_row(view, request)))

    def sent(self, request: Request) -> Response:
        view = self._view(request)
        sent = view.tree.request_of(_requested_row(view, request))
        if sent is None:
            raise HTTPException(404, "This row is not a model request.")
        return self._ok(sent_json(*sent))

    def find(self, request: Request) -> Response:
        view, text = self._view(request), request.query_params.get("q", "").strip()
        rows = view.search(text, self._site.redactor()) if text else []
        return self._ok({"rows": rows})

    def file(self, request: Request) -> Response:
        """Return a run as a JSON file that the command `acorn show` can open. Secrets are redacted."""
        site, view = self._site, self._view(request)
        if site.store is None:
            saved = {"run": view.header, "journal": [entry_event(entry) for entry in view.tree.entries]}
        else:
            saved = json.loads(acorn.runs(site.store).get(view.header["id"]).to_json())
        name = "".join(char for char in str(view.header["id"]) if char.isascii() and (char.isalnum() or char in "-_"))
        headers = {"content-disposition": f'attachment; filename="{name or "run"}.json"'}
        return _json(site.redactor().data(saved, NO_LIMIT), headers=headers)

    # Endpoints for forks, Python tests, comparisons and workers

    def fork(self, request: Request) -> Response:
        """Return the events that a fork of a run would copy, and the tools that it may call again.

        A fork is a new run that starts with the first steps of another run.
        """
        before = read_number(request.query_params.get("before", ""))
        run_id = self._view(request).header["id"]
        return self._ok(self._site.describe_fork(run_id, before), TEXT_LIMIT + 1)

    def python(self, request: Request) -> Response:
        run_id = self._view(request).header["id"]
        return self._ok({"text": self._site.python(run_id)}, NO_LIMIT)

    def compare(self, request: Request) -> Response:
        """Return the rows of two runs, with pairs of corresponding rows."""
        left = self._view(request, request.query_params.get("a", ""))
        right = self._view(request, request.query_params.get("b", ""))
        return _json(_compare(left, right, self._site.redactor()))

    def fleet(self, request: Request) -> Response:
        fleet = self._site.fleet()
        if fleet is None:
            message = f"The store {self._site.index.name} does not support workers. Use a PostgreSQL store."
            raise HTTPException(404, message)
        return self._ok(fleet)

    def _view(self, request: Request, run_id: str | None = None) -> RunView:
        requested_id = request.path_params["id"] if run_id is None else run_id
        view = self._site.index.view(requested_id)
        if view is None:
            raise HTTPException(404, "This run does not exist. It may have been deleted.")
        return view

    # Endpoints that stream events

    def stream(self, request: Request) -> Response:
        """Stream those events of a run that the browser has not received yet."""
        if request.path_params["id"] not in self._site.live_runs:  # The store may not contain a new run yet.
            self._view(request)
        return guard.EventStream(run_events(self._site, request.path_params["id"], _last_event_id(request, "")))

    def rows(self, request: Request) -> Response:
        """Stream the changed rows of a run until the run is over."""
        version = read_number(_last_event_id(request, request.query_params.get("after", ""))) or 0
        return guard.EventStream(row_events(self._site, self._view(request).header["id"], version))


def _compare(left: RunView, right: RunView, redactor: Redactor) -> JsonObject:
    first, second = sorted((left.lock, right.lock), key=id)  # A fixed order prevents deadlocks.
    with first, second:
        return {
            "a": left.page_data(redactor),
            "b": right.page_data(redactor),
            "pairs": [
                [pair.left and pair.left.id, pair.right and pair.right.id, pair.depth, int(pair.is_same)]
                for pair in align(left.tree, right.tree)
            ],
        }


def _requested_row(view: RunView, request: Request) -> Row:
    number = read_number(request.query_params.get("row", ""))
    if number is None or number >= len(view.tree.rows):
        raise HTTPException(404, "This run does not contain the requested row.")
    return view.tree.rows[number]


async def _read_body(request: Request, schema: type[Body]) -> Body:
    return await run_in_threadpool(_parse_body, await request.body(), schema)  # An input with media may be large.


def _parse_body(body: bytes, schema: type[Body]) -> Body:
    try:
        return schema.model_validate(json.loads(body))  # Pydantic would reject half a surrogate pair.
    except ValidationError as error:
        problem = error.errors()[0]
        path = ".".join(map(str, problem["loc"]))
        where = f"`{path}` in the request body" if path else "The request body"
        if problem["type"] == "extra_forbidden":
            message = f"The request body contains the unknown key `{path}`. Remove the key."
        elif problem["type"] == "model_type":  # The message of Pydantic contains the name of the class.
            message = f"{where} must be a JSON object."
        else:
            message = f"{where} is wrong: {problem['msg']}."
        raise HTTPException(422, message) from None
    except (ValueError, RecursionError):
        raise HTTPException(422, "The request body must be valid JSON.") from None


def _last_event_id(request: Request, default: str) -> str:
    """Return the id of the last event that the browser received.

    A browser that reconnects sends the id in a header. The script of the page sends the id as a query parameter.
    """
    return request.headers.get("last-event-id") or request.query_params.get("from") or default


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
    if agent is not None and not is_instance(agent):
        raise DeclarationError(
            f"`acorn.web.app` needs an instance of a module, such as `Researcher()`, but got {agent!r}."
        )
    return page_app(make_site(agent, store, files), hosts, key)

"""The routes: each reads a request, calls a room, and answers in JSON or as a stream of events.

The site as an ASGI application: its routes behind the guard.
"""

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
from acorn._inside import describe_blobs as shortened
from acorn._inside import describe_error, shorten
from acorn.stores.port import Status
from acorn.types import JsonObject
from acorn.web.guard import LOOPBACK, Guard, TooLongError, TooSlowError
from acorn.web.page.agent import described, wanted
from acorn.web.page.align import aligned
from acorn.web.page.files import SHELL, Page, read_pages
from acorn.web.page.run_index import RunView, StoreRunIndex
from acorn.web.page.site import MOST, BusyError, Site, site_of
from acorn.web.page.streams import KEPT, kept_events, live_events, row_events
from acorn.web.page.wire import CUT, WHOLE, PageRedactor, dumped, entry_event

_UNKNOWN = "There is no such run here."

Answer = Callable[[Request], Awaitable[Response]]


class _WrongError(Exception):
    """A request that cannot be answered."""

    def __init__(self, status: int, words: str, **more: Any) -> None:
        super().__init__(words)
        self.status, self.more = status, more


def routes(site: Site) -> Router:
    """Every address of the site. A page of another part is a row here and a file in `static/`."""
    api = _Api(site)
    pages = read_pages()

    async def page(request: Request) -> Response:
        return _shell(pages[SHELL], str(request.scope.get("root_path", "")))

    async def static(request: Request) -> Response:
        found = pages.get(request.path_params["name"])
        return _json(404, site.veil(), {"error": "There is no such file."}) if found is None else _file(found, request)

    gets: Mapping[str, Answer] = {
        "/api/agent": api.agent,
        "/api/runs": api.runs,
        "/api/requests": api.requests,
        "/api/runs/{id}/stream": api.stream,
        "/api/runs/{id}/view": api.view,
        "/api/runs/{id}/rows": api.rows,
        "/api/runs/{id}/details": api.details,
        "/api/runs/{id}/sent": api.sent,
        "/api/runs/{id}/find": api.find,
        "/api/runs/{id}/talk": api.talk,
        "/api/runs/{id}/file": api.file,
        "/api/runs/{id}/fork": api.fork,
        "/api/runs/{id}/python": api.python,
        "/api/compare": api.compare,
        "/api/fleet": api.fleet,
    }
    posts: Mapping[str, Answer] = {
        "/api/runs": api.begin,
        "/api/runs/{id}/stop": api.stop,
        "/api/runs/{id}/resume": api.resume,
        "/api/requests/{id}": api.answer,
    }
    found = [Route(path, page) for path in ("/", "/runs/", "/runs/{id}", "/compare", "/fork", "/fleet")]
    found += [Route("/static/{name}", static)]
    found += [Route(path, api.told(act)) for path, act in gets.items()]
    found += [Route(path, api.told(act), methods=["POST"]) for path, act in posts.items()]
    found += [Route("/api/runs/{id}", api.told(api.delete), methods=["DELETE"])]

    async def nothing(request: Request) -> Response:
        return _json(404, site.veil(), {"error": "There is nothing at this address."})

    return Router([*found, Route("/{rest:path}", nothing, methods=["GET", "HEAD", "POST", "DELETE"])])


def _json(
    status: int, veil: PageRedactor, value: Any, limit: int = WHOLE, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(veil.json(value, limit), status, headers, media_type="application/json")


class _Api:
    """The routes of one site."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def told(self, act: Answer) -> Answer:
        """What goes wrong is told in JSON."""

        async def answer(request: Request) -> Response:
            headers: dict[str, str] = {}
            try:
                return await act(request)
            except _WrongError as error:
                status, more = error.status, {"error": str(error), **error.more}
            except TooLongError:
                status, more = 413, {"error": "The request is too long."}
            except TooSlowError as error:
                # The rest of the body may trickle in forever.
                headers, status, more = {"connection": "close"}, 408, {"error": str(error)}
            except InputError as error:
                status, more = 422, {"error": str(error), "problems": error.problems}
            except AcornError as error:
                status = 429 if isinstance(error, BusyError) else 409 if isinstance(error, StoreError) else 422
                more = {"error": str(error)}
            except Exception as error:
                # What a file or a store holds may be damaged, or made by somebody who means no good.
                reads = request.method in ("GET", "HEAD")
                words = "This cannot be shown, it may be damaged" if reads else "This could not be done"
                status, more = 409 if reads else 500, {"error": f"{words}: {shorten(describe_error(error))}"}
            return _json(status, self._site.veil(), more, headers=headers)

        return answer

    # The agent, and what it is asked to do

    async def agent(self, request: Request) -> Response:
        site = self._site
        found = None if site.agent is None else await run_in_threadpool(described, site.agent)
        about = {"store": site.shelf.name, "fleet": site.has_fleet, "version": acorn.__version__}
        return _json(200, site.veil(), {"agent": found, **about})

    async def begin(self, request: Request) -> Response:
        body = await _body(request, {"input", "after", "model", "fork"})
        after, model = _text(body, "after"), _text(body, "model")
        fork = wanted(body["fork"]) if "fork" in body else None
        if fork is not None and (after or "input" in body):
            raise _WrongError(422, "A fork has the input of its run, so it takes neither `input` nor `after`.")
        run_id = await run_in_threadpool(self._site.begin, body.get("input", {}), after, model, fork)
        return _json(201, self._site.veil(), {"id": run_id})

    async def stop(self, request: Request) -> Response:
        run_id = request.path_params["id"]
        if run_id not in self._site.lives:  # one that has just begun may not be in the store yet
            await self._book(request)
        await run_in_threadpool(self._site.stop, run_id)
        return _json(200, self._site.veil(), {})

    async def resume(self, request: Request) -> Response:
        await run_in_threadpool(self._site.resume, request.path_params["id"])
        return _json(200, self._site.veil(), {})

    async def answer(self, request: Request) -> Response:
        body = await _body(request, {"value"})
        goes_on = await run_in_threadpool(self._site.answer, request.path_params["id"], body.get("value"))
        return _json(200, self._site.veil(), {"goes_on": goes_on})

    async def requests(self, request: Request) -> Response:
        return _json(200, self._site.veil(), {"requests": await run_in_threadpool(self._site.requests)})

    async def delete(self, request: Request) -> Response:
        await run_in_threadpool(self._site.delete, request.path_params["id"])
        return _json(200, self._site.veil(), {})

    # Runs

    async def runs(self, request: Request) -> Response:
        query = request.query_params
        status = query.getlist("status")
        if unknown := [each for each in status if each not in get_args(Status)]:
            raise _WrongError(422, f"`{unknown[0]}` is no state of a run; they are {', '.join(get_args(Status))}.")
        try:
            before = datetime.fromisoformat(query["before"]) if query.get("before") else None
        except ValueError:
            raise _WrongError(422, "`before` is no time such as `2026-01-31T12:00:00+00:00`.") from None
        if before is not None and before.tzinfo is None:
            before = before.replace(tzinfo=UTC)
        agent = query.get("agent") or None
        text = query.get("q", "").strip()
        veil = self._site.veil()
        return _json(
            200,
            veil,
            (await run_in_threadpool(self._site.shelf.heads, status, agent, text, before, veil))._asdict(),
            200,
        )

    async def talk(self, request: Request) -> Response:
        """The runs of the conversation that a run belongs to, up to itself."""
        shelf = self._site.shelf
        book = await run_in_threadpool(shelf.book, request.path_params["id"])
        batch = None if book is None else book.head.get("batch")
        if book is None or not isinstance(batch, str) or not isinstance(shelf, StoreRunIndex):
            return _json(200, self._site.veil(), {"runs": []})
        earlier = await run_in_threadpool(_earlier, shelf, batch, book)
        return _json(200, self._site.veil(), {"runs": earlier}, CUT)

    async def view(self, request: Request) -> Response:
        book, veil = await self._book(request), self._site.veil()
        waits = book.status == "waiting"
        requests = await run_in_threadpool(self._site.requests, str(book.head["id"])) if waits else []
        body = await run_in_threadpool(viewed, book, veil, is_own=self._site.is_own(book), requests=requests)
        return Response(body, media_type="application/json")

    async def details(self, request: Request) -> Response:
        book = await self._book(request)
        row = _row(book, request)
        said = [entry_event(entry) for entry in book.rows.of(row)]
        results = book.rows.results(row) if row.kind != "model" else []
        call = None if row.call is None else list(row.call)
        return _json(200, self._site.veil(), {"row": row.id, "entries": said, "results": results, "call": call})

    async def sent(self, request: Request) -> Response:
        book = await self._book(request)
        found = book.rows.asked_with(_row(book, request))
        if found is None:
            raise _WrongError(404, "Nothing was sent for this row.")
        messages, asked = found
        exact = len(messages) == asked.messages
        known = {"model": asked.model, "forced": asked.forced, "count": asked.messages, "exact": exact}
        return _json(200, self._site.veil(), {"messages": shortened(messages), **known})

    async def find(self, request: Request) -> Response:
        book, text = await self._book(request), request.query_params.get("q", "").strip()
        found = await run_in_threadpool(book.found, text, self._site.veil()) if text else []
        return _json(200, self._site.veil(), {"rows": found})

    async def file(self, request: Request) -> Response:
        """The run as `acorn show` reads it, veiled like everything else."""
        site, book = self._site, await self._book(request)
        if site.store is None:
            plain: Any = {"run": book.head, "journal": [entry_event(entry) for entry in book.rows.entries]}
        else:
            run = await run_in_threadpool(acorn.runs(site.store).get, book.head["id"])
            plain = json.loads(run.to_json())
        name = "".join(each for each in str(book.head["id"]) if each.isascii() and (each.isalnum() or each in "-_"))
        headers = {"content-disposition": f'attachment; filename="{name or "run"}.json"'}
        body = await run_in_threadpool(site.veil().json, plain, 10**9)
        return Response(body, media_type="application/json", headers=headers)

    # What is made of a run

    async def fork(self, request: Request) -> Response:
        """What a fork would keep, and what may be called again."""
        given = request.query_params.get("before", "")
        before = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else None
        run_id = (await self._book(request)).head["id"]
        return _json(200, self._site.veil(), await run_in_threadpool(self._site.forkable, run_id, before), WHOLE + 1)

    async def python(self, request: Request) -> Response:
        run_id = (await self._book(request)).head["id"]
        text = await run_in_threadpool(self._site.python, run_id)
        return _json(200, self._site.veil(), {"text": text}, MOST)

    async def compare(self, request: Request) -> Response:
        """Two runs side by side."""
        left = await self._book(request, request.query_params.get("a", ""))
        right = await self._book(request, request.query_params.get("b", ""))
        found = await run_in_threadpool(_compared, left, right, self._site.veil())
        return Response(dumped(found), media_type="application/json")

    async def fleet(self, request: Request) -> Response:
        found = await run_in_threadpool(self._site.fleet)
        if found is None:
            raise _WrongError(404, f"{self._site.shelf.name} has no workers: a PostgreSQL store has.")
        return _json(200, self._site.veil(), found)

    async def _book(self, request: Request, run_id: str | None = None) -> RunView:
        named = request.path_params["id"] if run_id is None else run_id
        book = await run_in_threadpool(self._site.shelf.book, named)
        if book is None:
            raise _WrongError(404, _UNKNOWN)
        return book

    # Streams

    async def stream(self, request: Request) -> Response:
        """What happens in a run, from where the reader was: `id` says how far it had come."""
        run_id, site = request.path_params["id"], self._site
        live = site.lives.get(run_id)
        token, _, index = _from(request, "").partition("-")
        came = _number(index)
        if live is not None:
            return _events(live_events(site, live, came if token == live.token else 0))
        book = await self._book(request)
        return _events(kept_events(site, book, came if token == KEPT else 0))

    async def rows(self, request: Request) -> Response:
        """The rows of a run that goes on, as they change."""
        book = await self._book(request)
        given = _from(request, request.query_params.get("after", "0"))
        return _events(row_events(self._site, book, _number(given)))


def viewed(book: RunView, veil: PageRedactor, *, is_own: bool = False, requests: Sequence[Any] = ()) -> bytes:
    """A run as the viewer gets it: its head and its rows, without what they hold."""
    with book.lock:
        rows = [row.plain(veil) for row in book.rows.all]
        head = veil.plain({**book.plain_head(), "own": is_own})
        version = len(book.rows.entries)
    return dumped({"head": head, "rows": rows, "version": version, "requests": veil.plain(list(requests))})


def _compared(left: RunView, right: RunView, veil: PageRedactor) -> JsonObject:
    with ExitStack() as held:
        for lock in sorted({left.lock, right.lock}, key=id):  # in one order, whoever else compares the same two
            held.enter_context(lock)
        pairs = aligned(left.rows, right.rows)
        one, other = (
            {"head": veil.plain(book.plain_head()), "rows": [row.plain(veil) for row in book.rows.all]}
            for book in (left, right)
        )
    return {
        "a": one,
        "b": other,
        "pairs": [
            [pair.left and pair.left.id, pair.right and pair.right.id, pair.depth, int(pair.is_same)] for pair in pairs
        ],
    }


def _earlier(shelf: StoreRunIndex, batch: str, book: RunView) -> list[JsonObject]:
    item = book.head.get("item") or 0
    found = [facts for facts in shelf.runs_of(batch) if (facts.item or 0) < item and facts.status == "done"]
    books = [shelf.book(facts.id) for facts in found[-20:]]
    return [
        {name: each.head.get(name) for name in ("id", "input", "output")} for each in books if each is not None
    ]  # fmt: skip


def _row(book: RunView, request: Request) -> Any:
    number = _number(request.query_params.get("row", ""), -1)
    if not 0 <= number < len(book.rows.all):
        raise _WrongError(404, "There is no such row.")
    return book.rows.all[number]


def _number(text: str, otherwise: int = 0) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else otherwise


async def _body(request: Request, known: set[str]) -> JsonObject:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise _WrongError(422, "The request is no JSON.") from None
    if not isinstance(body, dict):
        raise _WrongError(422, "The request is no JSON object.")
    if strange := sorted(body.keys() - known):
        raise _WrongError(422, f"The request has `{strange[0]}`, which nobody knows here.")
    return body


def _text(body: Mapping[str, Any], name: str) -> str | None:
    found = body.get(name)
    if found is not None and not isinstance(found, str):
        raise _WrongError(422, f"`{name}` is a text.")
    return found or None


def _from(request: Request, otherwise: str) -> str:
    """How far a reader had come: a browser says so when it comes back by itself, the page when it does."""
    return request.headers.get("last-event-id") or request.query_params.get("from") or otherwise


def _events(chunks: AsyncGenerator[bytes]) -> Response:
    return StreamingResponse(chunks, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def guarded(site: Site, hosts: Collection[str], key: str | None) -> ASGIApp:
    """The whole site behind its guard."""
    return Guard(routes(site), hosts, key)


def app(
    agent: module[Any, Any] | None = None,
    *,
    store: Any = None,
    files: Sequence[Path] = (),
    key: str | None = None,
    hosts: Collection[str] = LOOPBACK,
) -> ASGIApp:
    """The page as an ASGI application: of an agent, of a store without one, or of files of saved runs.

        app = acorn.web.app(Researcher(), store="runs.db", key=os.environ["PAGE_KEY"])

    Without `store`, runs are kept in the agent's own, or in memory. With a `key`, `/login?key=...` lets a browser in;
    without one, whoever reaches the application may use it: put it behind your own login. It answers to the names in
    `hosts` alone.
    """
    return guarded(site_of(agent, store, files), hosts, key)


def _file(page: Page, request: Request) -> Response:
    """Return a file of the page, or 304 if it has not changed."""
    headers = {"etag": page.tag, "cache-control": "no-cache", "content-type": page.kind}
    if request.headers.get("if-none-match") == page.tag:
        return Response(status_code=304, headers=headers)
    return Response(page.body, headers=headers)


def _shell(page: Page, mounted: str) -> Response:
    """Return the HTML page with the address at which it is mounted."""
    body = page.body.replace(b"{{base}}", escape(mounted, quote=True).encode())
    return Response(body, headers={"content-type": page.kind, "cache-control": "no-cache"})

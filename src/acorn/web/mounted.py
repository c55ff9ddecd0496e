"""The site as an ASGI application: its routes behind the guard."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from acorn import module
from acorn.web.api import routes
from acorn.web.guard import LOOPBACK, Guard
from acorn.web.site import Site, site_of


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

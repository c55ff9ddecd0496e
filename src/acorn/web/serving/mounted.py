"""The service as an ASGI application: its addresses behind the gate."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from starlette.types import ASGIApp

from acorn import module
from acorn.errors import DeclarationError
from acorn.web.guard import LOOPBACK, check_key
from acorn.web.serving.gate import Gate
from acorn.web.serving.routes import Routes
from acorn.web.serving.service import CONCURRENCY, TIMEOUT, Service


def gated(service: Service, hosts: Collection[str], keys: Collection[str]) -> ASGIApp:
    """The whole service behind its gate."""
    return Gate(service, Routes(service, has_key=bool(keys)), hosts, keys)


def service(
    agent: module[Any, Any],
    *,
    keys: Collection[str] = (),
    hosts: Collection[str] = LOOPBACK,
    timeout: float = TIMEOUT,
    concurrency: int = CONCURRENCY,
) -> ASGIApp:
    """An agent as an HTTP service, an ASGI application: what `acorn serve` serves.

        app.mount("/researcher", acorn.web.service(Researcher(), keys=[os.environ["KEY"]], hosts=["example.com"]))

    Without `keys`, whoever reaches the application may use it: put it behind your own login. It answers to the names
    in `hosts` alone. A run has so many seconds, and so many may be under way at once.
    """
    if isinstance(keys, str):
        raise DeclarationError("`keys` of `acorn.web.service` is a list of texts, not one text.")
    for key in keys:
        check_key(key, "`acorn.web.service`")
    return gated(Service(agent, keys, timeout, concurrency), hosts, keys)

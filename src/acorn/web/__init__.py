"""The browser page for agents and stored runs, and the HTTP service for one agent.

    import acorn.web

    page = acorn.web.app(agent, store="runs.db", key="...")
    api = acorn.web.service(agent, keys=["..."])

Both are ASGI applications that you can mount in your own server. `acorn web` and `acorn serve` run them. They need the
extra `web`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acorn.web.page.routes import app as app
    from acorn.web.serve.app import service as service

__all__ = ["app", "service"]

# The modules are loaded at the first use, because `acorn show --html` works without the extra `web`.
_LAZY = {"app": "page.routes", "service": "serve.app"}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'acorn.web' has no attribute {name!r}")
    try:
        function = globals()[name] = getattr(import_module(f"acorn.web.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "starlette":
            raise
        message = "`acorn.web` needs the extra `web`: pip install 'acorn-agents[web]'."
        raise ModuleNotFoundError(message, name=error.name) from error
    return function

"""The page: play with an agent, and look at every run of a store. The service: an agent as a server of answers.

    import acorn.web

    page = acorn.web.app(agent, store="runs.db", key="...")
    api = acorn.web.service(agent, keys=["..."])

Both are ASGI applications, which `acorn web` and `acorn serve` serve, to be mounted in a server of one's own. Needs the
extra `web`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acorn.web.page.routes import app as app
    from acorn.web.serve.app import service as service

__all__ = ["app", "service"]

# What needs the extra is loaded when it is first used: a run is written into one file with its viewer without it.
_LATE = {"app": "page.routes", "service": "serve.app"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'acorn.web' has no attribute {name!r}")
    try:
        found = globals()[name] = getattr(import_module(f"acorn.web.{_LATE[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "starlette":
            raise
        words = "`acorn.web` needs the extra `web`: pip install 'acorn-agents[web]'."
        raise ModuleNotFoundError(words, name=error.name) from error
    return found

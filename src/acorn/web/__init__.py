"""The page: play with an agent, and look at every run of a store.

    import acorn.web

    server = acorn.web.app(agent, store="runs.db", key="...")

`app` is an ASGI application, to be served by `acorn web` or mounted in a server of one's own. Needs the extra `web`.
"""

try:
    from acorn.web.mounted import app
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "starlette":
        raise
    raise ModuleNotFoundError(
        "`acorn.web` needs the extra `web`: pip install 'acorn-agents[web]'.", name=error.name
    ) from error

__all__ = ["app"]

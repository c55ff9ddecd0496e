"""The page: play with an agent, and look at every run of a store. The service: an agent as a server of answers.

    import acorn.web

    page = acorn.web.app(agent, store="runs.db", key="...")
    api = acorn.web.service(agent, keys=["..."])

Both are ASGI applications, which `acorn web` and `acorn serve` serve, to be mounted in a server of one's own. Needs the
extra `web`.
"""

try:
    from acorn.web.mounted import app
    from acorn.web.serving.mounted import service
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "starlette":
        raise
    raise ModuleNotFoundError(
        "`acorn.web` needs the extra `web`: pip install 'acorn-agents[web]'.", name=error.name
    ) from error

__all__ = ["app", "service"]

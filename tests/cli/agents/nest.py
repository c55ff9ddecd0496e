"""An agent whose second step calls a branch, which calls another branch."""

from acorn import module, tool
from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, call, finish


@tool
def look() -> str:
    """Look."""
    return "seen"


def reply(request: ModelRequest) -> Reply:
    names = {each["function"]["name"] for each in request.tools}
    turns: int = sum(each["role"] == "assistant" for each in request.messages)
    if "outer" in names:
        replies: list[Reply] = [call("look"), call("outer"), finish("done")]
        return replies[turns]
    called = {each["function"]["name"] for message in request.messages for each in message.get("tool_calls") or ()}
    return call("inner") if "inner" in names - called else finish("fine")


class Inner(module[None, str]):
    """Do a little."""


class Outer(module[None, str]):
    """Do a part."""

    branches = {"inner": Inner}
    max_steps = 3


class Nest(module[None, str]):
    """Do it all."""

    model = ScriptedModel(reply)
    tools = [look]
    branches = {"outer": Outer}
    max_steps = 5

"""For tests of agents: a model that replays a script."""

from acorn.testing.scripted import Failure, Reply, ScriptedModel, call, finish

__all__ = ["Failure", "Reply", "ScriptedModel", "call", "finish"]

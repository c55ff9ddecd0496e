"""Models for tests: `ScriptedModel` replays a script, and `AnyModel` answers any agent."""

from acorn.testing.scripted import AnyModel, Failure, Reply, ScriptedModel, call, finish

__all__ = ["AnyModel", "Failure", "Reply", "ScriptedModel", "call", "finish"]

"""Models for tests: one that replays a script, and one that answers any agent."""

from acorn.testing.scripted import AnyModel, Failure, Reply, ScriptedModel, call, finish

__all__ = ["AnyModel", "Failure", "Reply", "ScriptedModel", "call", "finish"]

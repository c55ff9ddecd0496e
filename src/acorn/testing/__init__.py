"""For tests of agents: a model that replays a script, and one that answers any agent by itself."""

from acorn.testing.any_model import AnyModel
from acorn.testing.scripted import Failure, Reply, ScriptedModel, call, finish

__all__ = ["AnyModel", "Failure", "Reply", "ScriptedModel", "call", "finish"]

"""Runs for engines: drive one by its id, in whatever process an engine says.

    acorn.durable.perform("postgresql://host/name", run_id)

`acorn work` is such an engine already; this is for those who have another one.
"""

from acorn.durable.perform import DeliverAgainError, aperform, perform

__all__ = ["DeliverAgainError", "aperform", "perform"]

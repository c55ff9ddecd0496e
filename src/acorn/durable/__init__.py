"""Drive stored runs by their ids, for a job engine of your own.

    acorn.durable.perform("postgresql://host/name", run_id)

`acorn work` has a job engine already. This module is for programs that use another one.
"""

from acorn.durable.perform import DeliverAgainError, aperform, perform

__all__ = ["DeliverAgainError", "aperform", "perform"]

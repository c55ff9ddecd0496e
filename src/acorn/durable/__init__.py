"""Functions that drive a stored run, which means that they execute its steps until the run ends.

    acorn.durable.perform("postgresql://host/name", run_id)

The command `acorn work` includes a job engine. Use this module if your program uses another job engine.
"""

from acorn.durable.perform import DeliverAgainError, aperform, perform

__all__ = ["DeliverAgainError", "aperform", "perform"]

"""The port of language models: the requests that acorn sends and the responses that it expects.

A *lane* is the path of a request to its provider. `lanes/` contains the native lanes, `litellm/` reaches every other
provider, and `local/` runs a model in this process. `resolve.py` chooses one of these adapters for the `model` of a
class. `limits/` enforces rate limits, `retry.py` repeats failed requests, and `fallback.py` switches to another model.
"""

from acorn.models.port import CallDelta, Delta, Model, ModelResponse, Price, RawCall, StreamingModel
from acorn.models.request import ModelRequest

__all__ = ["CallDelta", "Delta", "Model", "ModelRequest", "ModelResponse", "Price", "RawCall", "StreamingModel"]

"""The port of language models: the requests that acorn sends and the responses that it expects.

A *lane* is the path of a request to its provider. `lanes/` holds the native lanes. Every other provider is reached
through `litellm/`, and `local/` runs a model in this process. `resolve.py` chooses one of them for a declared model.
"""

from acorn.models.port import CallDelta, Delta, Model, ModelResponse, Price, RawCall, StreamingModel
from acorn.models.request import ModelRequest

__all__ = ["CallDelta", "Delta", "Model", "ModelRequest", "ModelResponse", "Price", "RawCall", "StreamingModel"]

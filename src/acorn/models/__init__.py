"""Language models: the interface that every model implements, and the code that sends requests to providers.

A *lane* is the path of a request to its provider. `lanes/` contains the native lanes, which are acorn's own
implementations of the protocols of OpenAI and Anthropic. `litellm/` reaches every other provider, and `local/` runs a
model in this process. `resolve.py` chooses one of these adapters for the `model` setting of an agent class. `limits.py`
enforces rate limits, `retry.py` repeats failed requests, and `fallback.py` switches to another model.
"""

from acorn.models.port import CallDelta, Delta, Model, ModelResponse, Price, RawCall, StreamingModel
from acorn.models.request import ModelRequest

__all__ = ["CallDelta", "Delta", "Model", "ModelRequest", "ModelResponse", "Price", "RawCall", "StreamingModel"]

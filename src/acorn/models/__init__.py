"""The model port: what acorn asks of a language model, and what it gets back."""

from acorn.models.port import (
    CallDelta,
    Delta,
    Model,
    ModelRequest,
    ModelResponse,
    Price,
    RawCall,
    StreamingModel,
)

__all__ = ["CallDelta", "Delta", "Model", "ModelRequest", "ModelResponse", "Price", "RawCall", "StreamingModel"]

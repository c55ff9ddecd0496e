"""The model port: what acorn asks of a language model, and what it gets back."""

from acorn.models.port import Model, ModelRequest, ModelResponse, Price, RawCall

__all__ = ["Model", "ModelRequest", "ModelResponse", "Price", "RawCall"]

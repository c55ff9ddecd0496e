"""A model around another: in all that it does not say itself, it is the one inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from typing import Any

from acorn.models.port import Delta, Model, ModelRequest, Price


class Wrapped(ABC):
    """What asks another model; whoever wraps says how it completes and how it streams."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r})"

    @property
    def name(self) -> str:
        return self._model.name

    def can_force_tool(self, request: ModelRequest) -> bool:
        return self._model.can_force_tool(request)

    def price(self) -> Price | None:
        return self._model.price()

    def __getattr__(self, name: str) -> Any:
        """What else the model has. A model that cannot stream has no `stream` here either."""
        if name.startswith("_"):  # copy and pickle probe for these before there is a model
            raise AttributeError(name)
        found = getattr(self._model, name)
        if name in ("stream", "astream") and callable(found):
            return self._stream if name == "stream" else self._astream
        return found

    @abstractmethod
    def _stream(self, request: ModelRequest) -> Iterator[Delta]: ...

    @abstractmethod
    def _astream(self, request: ModelRequest) -> AsyncIterator[Delta]: ...


def close_stream(deltas: Any) -> None:
    """End a stream that may be no generator."""
    if hasattr(deltas, "close"):
        deltas.close()


async def aclose_stream(deltas: Any) -> None:
    if hasattr(deltas, "aclose"):
        await deltas.aclose()

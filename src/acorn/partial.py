"""The type `Partial[T]` of an output that the model has not completed yet.

    def on_stream(self, chunk):
        partial: Partial[CityInfo] | None = chunk.partial
        if partial and partial.city_name:
            print(partial.city_name)

For a type checker, `Partial[T]` is `T`. At run time, it is a Pydantic class in which every field may be None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from acorn._formats.partial.classes import partial_type

T = TypeVar("T")

if TYPE_CHECKING:
    Partial = Annotated[T, "partial"]
else:

    class Partial:
        """The generic type of an incomplete output: `Partial[T]` is a copy of `T` in which all fields are optional."""

        def __class_getitem__(cls, kind: Any) -> Any:
            return partial_type(kind)

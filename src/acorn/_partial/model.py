"""The partial class of a model, and the frame that fills it.

A snapshot is a new instance that shares the values of the last one. Where the field that is being written
is long, its key is left out of the instance's dict and filled in when somebody looks: at the attribute, or
at the whole, as `model_dump`, `==`, `repr` and copying do through `__dict__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from acorn._partial.frames import HIDDEN, Mark

_slots: dict[str, Any] = dict(vars(BaseModel))
_dict = _slots["__dict__"]
_fields_set, _extra, _private = (
    _slots[name] for name in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


class PartialModel(BaseModel):
    """A model in the middle of being written: every field is there, or None."""

    model_config = ConfigDict(protected_namespaces=(), arbitrary_types_allowed=True)
    __slots__ = ("__acorn_open__",)

    def __getattr__(self, name: str) -> Any:
        if _fill(self, name):
            return _dict.__get__(self)[name]
        return super().__getattr__(name)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

    if not TYPE_CHECKING:  # to a checker `__dict__` is what it always is

        @property
        def __dict__(self) -> dict[str, Any]:
            _fill(self)
            return _dict.__get__(self)

        @__dict__.setter
        def __dict__(self, value: dict[str, Any]) -> None:
            _dict.__set__(self, value)
            _open.__set__(self, None)


_open: Any = vars(PartialModel)["__acorn_open__"]
_new = object.__new__
_get_dict, _get_open = _dict.__get__, _open.__get__
_set_dict, _set_open = _dict.__set__, _open.__set__
_set_fields_set, _set_extra, _set_private = _fields_set.__set__, _extra.__set__, _private.__set__


def _fill(instance: PartialModel, name: str | None = None) -> bool:
    """Make the field that was left out, if it is the one that is asked for."""
    try:
        pending = _get_open(instance)
    except AttributeError:  # made by Pydantic itself, not by a frame
        return False
    if pending is None or (name is not None and pending[0] != name):
        return False
    values = _get_dict(instance)
    values[pending[0]] = pending[1].value()
    # In the order of the fields, as a dump shows them.
    _set_dict(instance, {field: values[field] for field in type(instance).__pydantic_fields__})
    _set_open(instance, None)
    return True


class ModelFrame:
    """A model that is open."""

    __slots__ = ("cls", "done", "fields", "name", "other", "seen", "values")
    is_object = True

    def __init__(self, cls: type[PartialModel], fields: dict[str, tuple[str, Any]], other: Any) -> None:
        self.cls = cls
        self.fields = fields
        self.other = other
        self.name: str | None = None
        self.seen: set[str] = set()
        self.done: tuple[str, ...] = ()
        """The fields whose values are complete."""
        self.values: dict[str, Any] = dict.fromkeys(cls.model_fields)

    def enter(self, key: str) -> Any:
        found = self.fields.get(key)
        if found is None:  # a key that the model does not have: read it, show nothing
            self.name = None
            return self.other
        self.name = found[0]
        if self.name in self.seen:  # written twice: the last one counts
            self.values = {**self.values, self.name: None}
            self.done = tuple(name for name in self.done if name != self.name)
        self.seen = self.seen | {self.name}
        return found[1]

    def put(self, value: Any) -> None:
        if self.name is not None:
            self.values[self.name] = None if value is HIDDEN else value
            self.done = (*(name for name in self.done if name != self.name), self.name)
        self.name = None

    def close(self) -> Any:
        return self._instance(self.values, None)

    def snapshot(self, child: Any) -> Any:
        values, name = self.values.copy(), self.name
        if name is None or child is HIDDEN:
            return self._instance(values, None)
        if isinstance(child, Mark):
            del values[name]
            return self._instance(values, (name, child))
        values[name] = child
        return self._instance(values, None)

    def _instance(self, values: dict[str, Any], pending: tuple[str, Mark] | None) -> PartialModel:
        # What `model_construct` does, without its cost.
        instance = _new(self.cls)
        _set_dict(instance, values)
        _set_fields_set(instance, self.seen)
        _set_extra(instance, None)
        _set_private(instance, None)
        _set_open(instance, pending)
        return instance

"""Runs that begin elsewhere: checked here, and put into their store as nothing but their input.

`submit` puts one, `map(..., queue=True)` many in a go; no machine is made for any of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from acorn._beginning import origin_of, store_of
from acorn._brackets import MADE_WITH, check_filled
from acorn._data import Shelf, to_saved, written
from acorn._declared import BatchItem, Queueing, agent_name, brought_by
from acorn._drive.kept_tree import check_fit
from acorn._json import excerpt
from acorn._loop.settings import OBJECT
from acorn._override import held, spec_within
from acorn._planning import OPTIONS, Agent
from acorn._record_json import restored
from acorn._schema.shape import Shape
from acorn._settings import SETTINGS
from acorn.errors import DeclarationError
from acorn.stores.port import Birth, Medium, Queued, Store

_FARTHEST = 2**31
"""Priorities are whole numbers of this size at most, as the engine keeps them."""


class Intake:
    """Makes runs of inputs, for one instance: what they have in common is judged and written once."""

    def __init__(self, agent: Agent[Any, Any]) -> None:
        self._agent, self._spec = agent, spec_within(held(), agent)
        self._brought, self.queueing = brought_by(agent), brought_by(agent).queueing or Queueing()
        self.name = agent_name(type(agent))
        self._check()
        self.store: Store = store_of(self._spec)
        origin = origin_of(agent)
        self._overrides, _ = written({"settings": origin.overrides, "file": origin.file})

    @property
    def shape(self) -> Shape:
        """What a run takes."""
        return self._spec.input

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], run_id: str | None, item: BatchItem | None) -> Queued:
        """The run of one input; `InputError` where it does not fit."""
        given = self._spec.input.from_call(self._spec.owner, args, kwargs, OPTIONS)
        batch, at = (None, None) if item is None else item
        now = datetime.now(UTC)
        text, found = written(to_saved(given))
        birth = Birth(self.name, None, None, text, now, self._overrides, batch, at)
        priority, not_before, _ = self.queueing
        media = [Medium(data.sha256, data.raw()) for data in found]
        return Queued(run_id or os.urandom(16).hex(), birth, priority, _moment(not_before, now), media)

    def put(self, runs: Iterable[Queued]) -> set[str]:
        """Put them into the store; the ids of those that it did not know."""
        return set(self.store.put(list(runs), deliver=self.queueing.deliver))

    def check_known(self, queued: Queued) -> None:
        """A name stands for one class and one input, whoever put it there."""
        before = self.store.read(queued.run_id)
        if before:
            shelf = Shelf(lambda _: dict(queued.media))
            given = restored(self._spec.input.schema, shelf.read(queued.birth.input), "input")
            check_fit(before[0], self.store, self.name, given)

    def _check(self) -> None:
        """What an instance has and a store does not keep, no worker would have."""
        owner, brought = self._spec.owner, self._brought
        empty = self._spec.input.is_empty, self._spec.output.is_empty
        check_filled(self._agent, owner, has_input=not empty[0], has_output=not empty[1])
        if self.queueing.deliver and (self.name.startswith("__main__:") or "<" in self.name):
            raise DeclarationError(
                f"No worker can find `{self.name}`, since it is not written in a file, at its top; put it there, as in "
                f"`agents.py`."
            )
        if brought.deps is not None:
            raise DeclarationError(
                f"`deps` of `{owner}` are not kept with a run that begins elsewhere; give them where it is driven, as "
                f"in `desk = {owner}().using(deps=...)` in `agents.py` and `acorn work agents.py:desk`."
            )
        if brought.prior or brought.fork is not None:
            raise DeclarationError(
                f"`history` of `{owner}` is not kept with a run that begins elsewhere, and neither is what `thread` "
                f"and `before` bring; call it here."
            )
        if MADE_WITH in vars(self._agent):
            raise DeclarationError(
                f"What stands in the brackets of this `{owner}` is not kept with a run that begins elsewhere; write a "
                f"class of its own, as in `class Mine({owner}[...])`."
            )
        if any(isinstance(self._agent, each.cls) for each in held()):
            raise DeclarationError(f"`{owner}.override(...)` holds in this process only, and the run begins elsewhere.")
        self._check_settings(owner)

    def _check_settings(self, owner: str) -> None:
        own = {name: value for name, value in list(vars(self._agent).items()) if name in SETTINGS and name != "store"}
        kept = origin_of(self._agent).overrides
        for name, value in own.items():
            if name not in kept or (name == "model" and _has_object(kept[name])):
                raise DeclarationError(
                    f"`{name}` of this `{owner}` is {excerpt(value)}, which is not kept with a run that begins "
                    f"elsewhere; set it on the class."
                )
            lost = sorted(value.keys() - kept[name].keys()) if isinstance(value, dict) else []
            if lost:
                raise DeclarationError(
                    f"`{name}` of this `{owner}` has `{'`, `'.join(lost)}`, which is not kept with a run that begins "
                    f"elsewhere; set it on the class, or give a key to the workers by their environment."
                )


def _has_object(model: Any) -> bool:
    return OBJECT in (model if isinstance(model, list) else [model])


def _moment(not_before: Any, now: datetime) -> datetime | None:
    if not_before is None or isinstance(not_before, datetime):
        return None if not_before is None else not_before.astimezone(UTC)
    return now + (not_before if isinstance(not_before, timedelta) else timedelta(seconds=not_before))


def _is_time(not_before: Any) -> bool:
    if isinstance(not_before, bool) or not isinstance(not_before, int | float | datetime | timedelta | None):
        return False
    try:
        _moment(not_before, datetime.now(UTC))
    except (OverflowError, ValueError):  # no calendar has it
        return False
    return True


def checked_queueing(before: Queueing | None, owner: str, given: Mapping[str, Any]) -> Queueing:
    """What `using` was given for runs that begin elsewhere, on top of what it was given before."""
    whole = (before or Queueing())._replace(**given)
    priority, not_before, deliver = tuple[Any, Any, Any](whole)
    is_count = isinstance(priority, int) and not isinstance(priority, bool) and -_FARTHEST <= priority < _FARTHEST
    rules = [
        ("priority", priority, is_count, "a whole number, the higher the sooner"),
        (
            "not_before",
            not_before,
            _is_time(not_before),
            "a datetime, a timedelta or a number of seconds from now, in the years 1 to 9999",
        ),
        ("deliver", deliver, isinstance(deliver, bool), "True or False"),
    ]
    for name, value, is_right, allowed in rules:
        if not is_right:
            raise DeclarationError(f"`{name}` of `{owner}.using` must be {allowed}, got {excerpt(value)}.")
    if not deliver and (priority or not_before is not None):
        raise DeclarationError(
            f"`priority` and `not_before` of `{owner}.using` are for the workers of the store; with `deliver=False` "
            f"the engine that you hand the run to sees to them."
        )
    return whole

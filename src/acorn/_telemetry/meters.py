"""What a program has set up, known by what it is: some providers compare themselves by their parts and have no hash.

The two metrics: how long requests to models take, and how many tokens they use.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from acorn._telemetry import conventions
from acorn.types import JsonObject, Usage

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


class ByIdentity:
    """A provider as the key of what was made with it."""

    __slots__ = ("provider",)

    def __init__(self, provider: Any) -> None:
        self.provider = provider

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.provider is self.provider

    def __hash__(self) -> int:
        return id(self.provider)


def tracer_of(provider: TracerProvider) -> Any:
    """The same for all runs."""
    return _tracer_of(ByIdentity(provider))


@lru_cache(maxsize=1)
def _tracer_of(known: ByIdentity) -> Any:
    return known.provider.get_tracer("acorn")


class Meters:
    """Counts requests; without a provider, nothing."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = None if provider is None else provider.get_meter("acorn")
        if meter is None:
            self._duration = self._tokens = None
            return
        told = "How long a request to a model took."
        buckets: Any = {"explicit_bucket_boundaries_advisory": conventions.DURATIONS}
        self._duration = meter.create_histogram(conventions.DURATION, "s", told, **buckets)
        told = "How many tokens a request to a model used."
        buckets = {"explicit_bucket_boundaries_advisory": conventions.COUNTS}
        self._tokens = meter.create_histogram(conventions.TOKENS, "{token}", told, **buckets)

    def record(self, attributes: JsonObject, seconds: float, usage: Usage | None) -> None:
        """A request is over; one that failed has used nothing that we know of."""
        if self._duration is not None:
            self._duration.record(seconds, attributes)
        if self._tokens is not None and usage is not None:
            self._tokens.record(usage.input_tokens, {**attributes, conventions.TOKEN_TYPE: "input"})
            self._tokens.record(usage.output_tokens, {**attributes, conventions.TOKEN_TYPE: "output"})


def meters_of(provider: MeterProvider | None) -> Meters:
    """The same for all runs."""
    return _meters_of(ByIdentity(provider))


@lru_cache(maxsize=1)
def _meters_of(known: ByIdentity) -> Meters:
    return Meters(known.provider)

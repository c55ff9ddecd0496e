"""The two metrics: how long requests to models take, and how many tokens they use."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from acorn._telemetry import names
from acorn._telemetry.providers import Known
from acorn.types import Usage

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


class Meters:
    """Counts requests; without a provider, nothing."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = None if provider is None else provider.get_meter("acorn")
        if meter is None:
            self._duration = self._tokens = None
            return
        told = "How long a request to a model took."
        buckets: Any = {"explicit_bucket_boundaries_advisory": names.DURATIONS}
        self._duration = meter.create_histogram(names.DURATION, "s", told, **buckets)
        told = "How many tokens a request to a model used."
        buckets = {"explicit_bucket_boundaries_advisory": names.COUNTS}
        self._tokens = meter.create_histogram(names.TOKENS, "{token}", told, **buckets)

    def record(self, attributes: dict[str, Any], seconds: float, usage: Usage | None) -> None:
        """A request is over; one that failed has used nothing that we know of."""
        if self._duration is not None:
            self._duration.record(seconds, attributes)
        if self._tokens is not None and usage is not None:
            self._tokens.record(usage.input_tokens, {**attributes, names.TOKEN_TYPE: "input"})
            self._tokens.record(usage.output_tokens, {**attributes, names.TOKEN_TYPE: "output"})


def meters_of(provider: MeterProvider | None) -> Meters:
    """The same for all runs."""
    return _meters_of(Known(provider))


@lru_cache(maxsize=1)
def _meters_of(known: Known) -> Meters:
    return Meters(known.provider)

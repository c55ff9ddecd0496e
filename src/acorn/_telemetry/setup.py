"""Whether a run is traced: where the program has set up OpenTelemetry, and nobody has said no.

Nothing of OpenTelemetry is imported here. A program that never did so pays for a look at what is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from acorn._base.log import logger
from acorn.errors import DeclarationError

if TYPE_CHECKING:
    from acorn._machine.machine import Machine
    from acorn._telemetry.trace import Trace

VARIABLE = "ACORN_TELEMETRY"
OTEL_API = "opentelemetry.trace"
"""The module that a program with OpenTelemetry has loaded."""
STANDARD = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WITH_CONTENT = ("span_only", "span_and_event", "true", "1")
_WITHOUT_CONTENT = ("", "no_content", "false", "0", "event_only")
_UNSET = ("ProxyTracerProvider", "NoOpTracerProvider", "_ProxyMeterProvider", "NoOpMeterProvider")
"""The providers of a program that has set up none; others have called theirs the same."""


def check_setting() -> None:
    """Complain of a value that means nothing, before anything is asked."""
    said = os.environ.get(VARIABLE)
    if said is not None and said not in ("", "off", "content"):
        raise DeclarationError(
            f"`{VARIABLE}` may be `off` (no spans) or `content` (spans with what was said), got {said[:40]!r}."
        )


def begin_trace(loops: Mapping[str, Machine], root: str, first_part: str | None) -> Trace | None:
    """What follows a tree of runs; None where nobody looks. `first_part` is the span that a resumed run began with."""
    api = sys.modules.get(OTEL_API)
    if api is None or os.environ.get(VARIABLE) == "off" or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    metrics = sys.modules.get("opentelemetry.metrics")
    try:
        tracer_provider = api.get_tracer_provider()
        meter_provider = None if metrics is None else metrics.get_meter_provider()
        if not _is_set(meter_provider):
            meter_provider = None
            if not _is_set(tracer_provider):
                return None
        from acorn._telemetry.trace import Trace  # with the API, which the program has loaded by now

        return Trace(loops, root, tracer_provider, meter_provider, first_part, has_content=_wants_content())
    except Exception as error:  # a provider of the user's, or half an API
        logger.error("Telemetry could not begin and is left out of run %s: %s", root, type(error).__name__)
        logger.debug("The error:", exc_info=error)
        return None


def _is_set(provider: object) -> bool:
    kind = type(provider)
    return provider is not None and not (kind.__name__ in _UNSET and kind.__module__.startswith("opentelemetry."))


def _wants_content() -> bool:
    if os.environ.get(VARIABLE) == "content":
        return True
    said = os.environ.get(STANDARD, "").strip().lower()
    if said not in _WITH_CONTENT and said not in _WITHOUT_CONTENT:
        logger.warning("`%s` is not known here; spans are without content.", STANDARD)
    elif said == "event_only":
        logger.warning("`%s`: acorn writes no events with content, only spans; they are without it.", STANDARD)
    return said in _WITH_CONTENT

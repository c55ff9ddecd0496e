"""The decision whether a run is traced.

A run is traced if the program has set up OpenTelemetry and has not disabled it. This file does not import
OpenTelemetry: a program without it pays only for a look at the loaded modules.
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
"""The classes of providers that are not set up. Other packages use the same names."""


def check_setting() -> None:
    """Raise `DeclarationError` if the environment variable has an unknown value."""
    value = os.environ.get(VARIABLE)
    if value is not None and value not in ("", "off", "content"):
        raise DeclarationError(
            f"`{VARIABLE}` has the unknown value {value[:40]!r}. Use `off` (no spans) or `content` (spans with message "
            f"content)."
        )


def start_trace(loops: Mapping[str, Machine], root: str, first_part: str | None) -> Trace | None:
    """Start the trace of a tree of runs, or return None if it is not traced.

    `first_part` is the first span of a run that resumes here.
    """
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
        from acorn._telemetry.trace import Trace  # It imports the API, which the program has already loaded.

        return Trace(loops, root, tracer_provider, meter_provider, first_part, has_content=_wants_content())
    except Exception as error:  # A provider of the user, or an incomplete API.
        logger.error("Telemetry could not start. Run %s is not traced: %s", root, type(error).__name__)
        logger.debug("The error:", exc_info=error)
        return None


def _is_set(provider: object) -> bool:
    kind = type(provider)
    return provider is not None and not (kind.__name__ in _UNSET and kind.__module__.startswith("opentelemetry."))


def _wants_content() -> bool:
    if os.environ.get(VARIABLE) == "content":
        return True
    value = os.environ.get(STANDARD, "").strip().lower()
    if value not in _WITH_CONTENT and value not in _WITHOUT_CONTENT:
        logger.warning("`%s` has an unknown value. Spans have no content.", STANDARD)
    elif value == "event_only":
        logger.warning("`%s`: acorn does not write events with content. Spans have no content either.", STANDARD)
    return value in _WITH_CONTENT

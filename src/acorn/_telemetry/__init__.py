"""Start of the OpenTelemetry trace of a run, if the program uses OpenTelemetry.

acorn traces a run if the program has set up OpenTelemetry and has not disabled it. This file does not import
OpenTelemetry. It only checks whether the program has already imported it.
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
"""The module that is loaded in every program that uses OpenTelemetry."""
STANDARD = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WITH_CONTENT = ("span_only", "span_and_event", "true", "1")
_WITHOUT_CONTENT = ("", "no_content", "false", "0")
_UNSET = ("ProxyTracerProvider", "NoOpTracerProvider", "_ProxyMeterProvider", "NoOpMeterProvider")
"""The names of the default provider classes, which OpenTelemetry uses before it is set up.

Other packages use the same class names, so the module of the class matters too."""


def check_setting() -> None:
    """Raise `DeclarationError` if the environment variable `ACORN_TELEMETRY` has an unknown value."""
    value = os.environ.get(VARIABLE)
    if value is not None and value not in ("", "off", "content"):
        raise DeclarationError(
            f"`{VARIABLE}` has the unknown value {value[:40]!r}. Use `off` (no spans) or `content` (spans with message "
            f"content)."
        )


def start_trace(machines: Mapping[str, Machine], root: str, first_span: str | None) -> Trace | None:
    """Return a trace for a run and its branches, or None if the program does not use OpenTelemetry.

    `root` is the id of the top-level run. If this run is resumed, `first_span` is the W3C `traceparent` of its first
    span.
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
        from acorn._telemetry import conventions, trace  # OpenTelemetry is loaded already.

        instruments = conventions.instruments_of(tracer_provider, meter_provider)
        return trace.Trace(machines, root, instruments, first_span, has_content=_wants_content())
    except Exception as error:  # The program's provider may fail, or the API may be incomplete.
        logger.error("Telemetry could not start, so run %s is not traced: %s", root, type(error).__name__)
        logger.debug("This error stopped the telemetry:", exc_info=error)
        return None


def _is_set(provider: object) -> bool:
    kind = type(provider)
    return provider is not None and not (kind.__name__ in _UNSET and kind.__module__.startswith("opentelemetry."))


def _wants_content() -> bool:
    if os.environ.get(VARIABLE) == "content":
        return True
    value = os.environ.get(STANDARD, "").strip().lower()
    if value not in _WITH_CONTENT and value not in _WITHOUT_CONTENT:
        logger.warning("acorn does not support the value of `%s`, so spans do not contain message content.", STANDARD)
    return value in _WITH_CONTENT

"""Tests of the telemetry that an exporter sends to a collector, also for a run that resumes in another process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


class Collector:
    """A collector of OTLP/HTTP."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector._take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics += [metric.name for scope in resource.scope_metrics for metric in scope.metrics]

    def take(self) -> list[Span]:
        """Return the data since the last call."""
        taken, self.spans = self.spans, []
        return taken

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def program(collector: Collector, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "telemetry_program.py"), *words],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={**os.environ, "PYTHONPATH": places, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, **environment},
    )  # fmt: skip


def said(span: Span) -> dict[str, Any]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}


def root_of(spans: list[Span]) -> Span:
    (found,) = [span for span in spans if not span.parent_span_id]
    return found


def test_trace_of_resumed_run_links_to_trace_of_paused_run(collector: Collector, tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    begun = program(collector, store, "begin")
    assert begun.returncode == 0, begun.stderr
    assert not begun.stderr
    first = collector.take()
    root = root_of(first)
    assert root.name == "invoke_agent Clerk"
    assert {span.name for span in first} == {"invoke_agent Clerk", "chat scripted", "execute_tool pay"}
    assert {span.trace_id for span in first} == {root.trace_id}
    assert {span.parent_span_id for span in first if span is not root} == {root.span_id}
    assert said(root)["acorn.stop_reason"] == "paused"
    assert [event.name for event in root.events] == ["acorn.human_asked"]
    assert {span.kind for span in first if span.name == "chat scripted"} == {Span.SPAN_KIND_CLIENT}
    assert {span.status.code for span in first} == {Status.STATUS_CODE_UNSET}
    assert not any("gen_ai.input.messages" in said(span) for span in first)
    assert set(collector.metrics) == {"gen_ai.client.operation.duration", "gen_ai.client.token.usage"}

    gone_on = program(collector, store, "resume", "yes", ACORN_TELEMETRY="content")
    assert gone_on.returncode == 0, gone_on.stderr
    second = collector.take()
    resumed = root_of(second)
    assert resumed.trace_id != root.trace_id
    assert [(link.trace_id, link.span_id) for link in resumed.links] == [(root.trace_id, root.span_id)]
    assert said(resumed)["gen_ai.conversation.id"] == said(root)["gen_ai.conversation.id"] == "order-1"
    assert said(resumed)["acorn.stop_reason"] == "finish"
    assert [event.name for event in resumed.events] == ["acorn.human_answered"]
    assert [span.name for span in second] == ["chat scripted", "invoke_agent Clerk"]
    assert "gen_ai.input.messages" in said(second[0])


def test_trace_of_run_resumed_after_crash_links_to_trace_of_crashed_process(
    collector: Collector, tmp_path: Path
) -> None:
    store = str(tmp_path / "runs.db")
    assert program(collector, store, "crash").returncode == 3
    (chat,) = collector.take()
    gone_on = program(collector, store, "resume")
    assert gone_on.returncode == 0, gone_on.stderr
    spans = collector.take()
    (link,) = root_of(spans).links
    assert (link.trace_id, link.span_id) == (chat.trace_id, chat.parent_span_id)
    assert "execute_tool pay" in [span.name for span in spans]


SCRIPT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ImportError(name)

if {is_absent}:
    sys.meta_path.insert(0, Absent())
from acorn import module
from acorn.testing import ScriptedModel, finish

class Plain(module[None, str]):
    "Say it."

print(Plain(model=ScriptedModel([finish("said")]))())
print([name for name in sys.modules if name.startswith(("opentelemetry", "acorn._telemetry.trace"))])
"""


@pytest.mark.parametrize("is_absent", [pytest.param(True, marks=pytest.mark.torture), False])
def test_opentelemetry_is_not_imported_without_telemetry_setup(is_absent: bool) -> None:
    source = SCRIPT.format(is_absent=is_absent)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["said", "[]"], done.stderr

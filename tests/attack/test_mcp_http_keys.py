"""Attacks on `acorn mcp --http` by other programs of the machine and by pages in a browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.behaviour.test_mcp_serve import TARGETS, environment, wait_for_line
from tests.cases import case
from tests.waiting import PATIENCE

KEY = "key-of-a-test-0123456789"
PING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}


@contextmanager
def served(folder: Path, *words: str, keys: str = "") -> Iterator[tuple[str, str]]:
    """Start a server. Yield its URL and the key that it has printed, or an empty text."""
    process = subprocess.Popen(
        [sys.executable, "-m", "acorn", "mcp", TARGETS[1], "--http", "0", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", **environment(folder), "ACORN_SERVE_KEYS": keys},
    )
    try:
        first = wait_for_line(process, r"^(key: \S+|Serving MCP at \S+)")
        key = first.removeprefix("key: ") if first.startswith("key: ") else ""
        line = wait_for_line(process, r"Serving MCP at \S+") if key else first
        yield re.findall(r"http://\S+/mcp", line)[0], key
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def status(url: str, key: str | None, method: str = "POST", **headers: str) -> int:
    sent = ACCEPT | headers | ({} if key is None else {"authorization": f"Bearer {key}"})
    content = json.dumps(HELLO) if method == "POST" else None
    with httpx.stream(method, url, headers=sent, content=content, timeout=PATIENCE, trust_env=False) as answer:
        return answer.status_code


def test_mcp_server_over_http_requires_key(tmp_path: Path) -> None:
    with served(tmp_path) as (url, key):
        assert len(key) > 30
        for wrong in (None, "wrong", key[:-1], key + "x"):
            for method in ("POST", "GET", "DELETE"):
                with case(wrong, method):
                    assert status(url, wrong, method) == 401
        assert status(url, key) == 200
        refused = httpx.post(url, json=PING, headers=ACCEPT, trust_env=False)
        assert refused.headers["www-authenticate"] == "Bearer"
        assert "shout" not in refused.text.lower()


def test_mcp_server_keys_come_from_variable_or_option(tmp_path: Path) -> None:
    with served(tmp_path, keys=f"desk={KEY}, other-key-0123456789") as (url, printed):
        assert printed == ""
        assert [status(url, key) for key in (KEY, "other-key-0123456789", f"desk={KEY}", None)] == [200, 200, 401, 401]
    with served(tmp_path, "--key", KEY) as (url, printed):
        assert (printed, status(url, KEY), status(url, None)) == ("", 200, 401)
    with served(tmp_path, "--no-key") as (url, printed):
        assert (printed, status(url, None)) == ("", 200)


def test_mcp_server_without_key_rejects_requests_of_pages(tmp_path: Path) -> None:
    with served(tmp_path, "--no-key") as (url, _):
        assert status(url, None, host="evil.example") == 403
        assert status(url, None, origin="http://evil.example") == 403
        assert status(url, None, **{"sec-fetch-site": "cross-site"}) == 403
        assert status(url, None, **{"content-type": "text/plain"}) == 415
        assert status(url, None, "PUT") == 405


def test_mcp_server_limits_request_bodies(tmp_path: Path) -> None:
    with served(tmp_path, "--key", KEY) as (url, _):
        headers = ACCEPT | {"authorization": f"Bearer {KEY}"}
        large = httpx.post(url, content=b" " * 1_000_001, headers=headers, timeout=PATIENCE, trust_env=False)
        assert large.status_code == 413
        assert status(url, KEY) == 200

"""`acorn serve` as a separate process, and the service without a network."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.waiting import PATIENCE, comes_true
from tests.web.serve.served_agent import ENVIRONMENT

import acorn.web

ROOT = Path(__file__).parents[3]
KEY = "a-key-for-tests-and-nothing-else"
APPROVER = "a-key-for-the-tests-of-a-person"
BY_APPROVER = {"authorization": f"Bearer {APPROVER}"}
HOME = "http://127.0.0.1:8123"
CLERK = "tests.web.serve.served_agent:Clerk"


class Served:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen[str], address: str, traces: Path, printed: list[str]) -> None:
        self.process, self.address, self.traces, self.printed = process, address, traces, printed
        self.client = httpx.Client(
            base_url=address, timeout=PATIENCE, trust_env=False, headers={"authorization": f"Bearer {KEY}"}
        )

    def has_begun(self, name: str) -> bool:
        return comes_true((self.traces / f"{name}.begun").exists)

    def is_cancelled(self, name: str) -> bool:
        return comes_true((self.traces / f"{name}.cancelled").exists)

    def let_go(self, name: str) -> None:
        (self.traces / f"{name}.go").touch()

    def ends(self) -> tuple[int, str]:
        """Return the exit code and all output."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, "".join(self.printed) + err + out


@contextmanager
def serving(folder: Path, *words: object, target: str = CLERK, **environment: str) -> Iterator[Served]:
    """Start a server on a free port, with the key of the tests unless the arguments say otherwise."""
    keys = [] if {"--key", "--no-key"} & set(words) or "ACORN_SERVE_KEYS" in environment else ["--key", KEY]
    search = os.pathsep.join([str(Path(acorn.__file__).parents[1]), str(ROOT)])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ACORN_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "acorn", "serve", target, "--port", "0", *map(str, words), *keys],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**inherited, **ENVIRONMENT, "PYTHONPATH": search, "TRACES": str(folder), **environment},
    )
    assert process.stderr is not None
    printed: list[str] = []
    address = ""
    try:
        for line in process.stderr:
            printed.append(line)
            address = address or "".join(re.findall(r"http://[\w.\[\]:]+", line))
            if line.startswith("Press Ctrl-C"):
                break
        assert address, "".join(printed)
        served = Served(process, address, folder, printed)
        with served.client:
            yield served
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def app(agent: Any, **options: Any) -> Any:
    """Return the service as an application."""
    return acorn.web.service(agent, **{"keys": [KEY], "approver_keys": [APPROVER], **options})


async def asked(service: Any, method: str, path: str, *, headers: Any = None, **options: Any) -> httpx.Response:
    """Send one request with the key; a header that is None is left out."""
    usual = {"authorization": f"Bearer {KEY}"} | ({"content-type": "application/json"} if method == "POST" else {})
    sent = {name: value for name, value in (usual | (headers or {})).items() if value is not None}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=service), base_url=HOME) as client:
        return await client.request(method, path, headers=sent, **options)


def get(service: Any, path: str, **options: Any) -> httpx.Response:
    return asyncio.run(asked(service, "GET", path, **options))


def post(service: Any, path: str, body: Any = None, **options: Any) -> httpx.Response:
    content = {"content": json.dumps(body)} if "content" not in options else {}
    return asyncio.run(asked(service, "POST", path, **content, **options))


def events(answer: httpx.Response) -> list[Any]:
    """Return the events of a stream."""
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]

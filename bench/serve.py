"""Measure the CPU time of a request in the process of `acorn serve`, relative to a direct call of the agent."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measure import Line
from pydantic import BaseModel

from acorn import module
from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, finish

COUNT = 200
ROUNDS = 7
KEY = "a-key-for-the-benchmark"
QUESTION = {"question": "How long does it take?"}


class Question(BaseModel):
    question: str


class Spent(BaseModel):
    seconds: float


def reply(request: ModelRequest) -> Reply:
    """Answer with the CPU seconds that the server process has used."""
    model.requests.clear()
    return finish(seconds=time.process_time())


model = ScriptedModel(reply)


class Clock(module[Question, Spent]):
    """Tell the time."""

    model = model


async def called(agent: Clock) -> float:
    """Return the minimum CPU seconds of a direct call."""
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(COUNT):
            await agent.arun(**QUESTION)
        best = min(best, (time.process_time() - begun) / COUNT)
    return best


async def streamed(agent: Clock) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(COUNT):
            async for _ in agent.astream(**QUESTION):
                pass
        best = min(best, (time.process_time() - begun) / COUNT)
    return best


class Asked:
    """A server process, and one connection to this server."""

    def __init__(self) -> None:
        here = Path(__file__)
        words = [sys.executable, "-m", "acorn", "serve", f"{here}:Clock", "--port", "0", "--key", KEY]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=here.parent)
        assert self.process.stderr is not None
        address = self.process.stderr.readline().rpartition("/")[2].strip()
        self.process.stderr.readline()
        self._line = http.client.HTTPConnection(address)

    def post(self, path: str, body: Any) -> bytes:
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        self._line.request("POST", path, json.dumps(body), headers)
        return self._line.getresponse().read()

    def spent(self) -> float:
        found: float = json.loads(self.post("/run", QUESTION))["seconds"]
        return found

    def cost(self, path: str, body: Any) -> float:
        """Return the minimum CPU seconds that the server needs for one request of this kind."""
        best = float("inf")
        for _ in range(ROUNDS):
            begun = self.spent()
            for _ in range(COUNT - 1):
                self.post(path, body)
            best = min(best, (self.spent() - begun) / COUNT)
        return best

    def close(self) -> None:
        self._line.close()
        self.process.terminate()
        self.process.wait()


def lines() -> list[Line]:
    chat = {"messages": [{"role": "user", "content": "How long?"}]}
    plain, stream = asyncio.run(called(Clock())), asyncio.run(streamed(Clock()))
    server = Asked()
    try:
        run = server.cost("/run", QUESTION) - plain
        completion = server.cost("/v1/chat/completions", chat) - plain
        events = server.cost("/stream", QUESTION) - stream
    finally:
        server.close()
    return [
        Line("`acorn serve`, a request over calling the agent", run * 1e3, 1.0, " ms"),
        Line("the same as a chat completion", completion * 1e3, 1.0, " ms"),
        Line("the same as a stream", events * 1e3, None, " ms"),
    ]


if __name__ == "__main__":
    print(*lines(), sep="\n")

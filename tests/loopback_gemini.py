"""Gemini's protocol on a loopback server: whole answers, and streams of one event.

    with Loopback(gemini_answers([call("look", place="here"), finish(result="done")])) as server:
        agent = Looking(model=gemini(server))

Each call has its own signature, like those of a model that thinks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tests.loopback import EVENTS, Answer, Fault, Loopback, Request

from acorn.testing import Reply

Json = dict[str, Any]


def gemini(server: Loopback, name: str = "gemini-3-pro-preview", **extra: Any) -> Json:
    """Return a model dict for a server as Gemini."""
    return {"model": f"gemini/{name}", "api_base": server.url, "api_key": "k", "retry_delay": 0.01, **extra}


def gemini_answers(replies: Sequence[Reply]) -> Callable[[Request], Answer]:
    """Return the server's answers in order."""
    waiting = iter(enumerate(replies, start=1))

    def answer(request: Request) -> Answer:
        number, reply = next(waiting)
        whole = json.dumps(gemini_answer(reply, number))
        if "streamGenerateContent" in request.path:
            return Fault(body=f"data: {whole}\n\n".encode(), content_type=EVENTS)
        return Fault(body=whole.encode())

    return answer


def gemini_answer(reply: Reply, number: int) -> Json:
    parts: list[Json] = [{"text": reply.content}] if reply.content else []
    for at, made in enumerate(reply.calls):
        call = {"name": made.name, "args": json.loads(made.arguments)}
        parts.append({"functionCall": call, "thoughtSignature": signature(number, at)})
    counted = {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": counted, "modelVersion": "gemini-3-pro-preview"}


def signature(number: int, at: int = 0) -> str:
    """Return the signature of a call: base64 with letters that no id has."""
    return f"c2ln+{number}/{at}=="

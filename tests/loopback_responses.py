"""OpenAI's Responses on the loopback server: whole answers, and streams of events."""

from __future__ import annotations

import json
from typing import Any

from acorn.testing import Reply
from acorn.types import Usage

Json = dict[str, Any]


def _items(reply: Reply, body: Json, number: int) -> list[Json]:
    found: list[Json] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        thought: Json = {"type": "reasoning", "id": f"rs_{number}", "summary": summary}
        if "reasoning.encrypted_content" in (body.get("include") or ()):
            thought["encrypted_content"] = f"sealed-{number}"
        found.append(thought)
    parts: list[Json] = []
    if reply.content or not (reply.calls or reply.refusal):
        parts.append({"type": "output_text", "text": reply.content, "annotations": []})
    if reply.refusal:
        parts.append({"type": "refusal", "refusal": reply.refusal})
    if parts:
        message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        found.append({**message, "content": parts})
    for at, made in enumerate(reply.calls):
        id = f"call_{number}_{at}" if made.id is None else made.id
        call = {"type": "function_call", "id": f"fc_{number}_{at}", "call_id": id, "status": "completed"}
        found.append({**call, "name": made.name, "arguments": made.arguments})
    return found


def _usage(reply: Reply) -> Json:
    usage = reply.usage or Usage(100, 20)
    read = {"cached_tokens": usage.cached_tokens}
    if usage.cache_write_tokens:
        read["cache_write_tokens"] = usage.cache_write_tokens
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "input_tokens_details": read,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def responses_answer(reply: Reply, body: Json, number: int) -> Json:
    why = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reply.stop_reason or "")
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "status": "incomplete" if why else "completed",
        "error": None,
        "incomplete_details": {"reason": why} if why else None,
        "model": str(body.get("model")),
        "output": _items(reply, body, number),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": _usage(reply),
    }


def responses_stream(reply: Reply, body: Json, number: int, size: int) -> bytes:
    whole = responses_answer(reply, body, number)
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    events: list[Json] = [{"type": "response.created", "response": begun}]
    events.append({"type": "response.in_progress", "response": begun})
    for at, item in enumerate(whole["output"]):
        events += _events_of(item, at, size)
    events.append({"type": f"response.{whole['status']}", "response": whole})
    lines = [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': at})}\n\n"
        for at, event in enumerate(events)
    ]
    return "".join(lines).encode()


def _events_of(item: Json, at: int, size: int) -> list[Json]:
    empty: dict[str, Json] = {
        "reasoning": {"summary": []},
        "message": {"content": []},
        "function_call": {"arguments": ""},
    }
    begun = {**item, **empty[item["type"]]}
    begun = {**begun, "status": "in_progress"} if "status" in item else begun
    found: list[Json] = [{"type": "response.output_item.added", "output_index": at, "item": begun}]
    where = {"item_id": item["id"], "output_index": at}
    if item["type"] == "function_call":
        found += _pieces("response.function_call_arguments", where, "arguments", item["arguments"], size)
    for part_at, part in enumerate(item.get("summary", ())):
        here = {**where, "summary_index": part_at}
        added = {"type": "response.reasoning_summary_part.added", **here, "part": {**part, "text": ""}}
        found += [added, *_pieces("response.reasoning_summary_text", here, "text", part["text"], size)]
        found.append({"type": "response.reasoning_summary_part.done", **here, "part": part})
    for part_at, part in enumerate(item.get("content", ())):
        here = {**where, "content_index": part_at}
        key = "refusal" if part["type"] == "refusal" else "text"
        added = {"type": "response.content_part.added", **here, "part": {**part, key: ""}}
        kind = "response.refusal" if key == "refusal" else "response.output_text"
        found += [added, *_pieces(kind, here, key, part[key], size)]
        found.append({"type": "response.content_part.done", **here, "part": part})
    found.append({"type": "response.output_item.done", "output_index": at, "item": item})
    return found


def _pieces(kind: str, where: Json, key: str, text: str, size: int) -> list[Json]:
    cut = [text[at : at + size] for at in range(0, len(text), size)]
    found: list[Json] = [{"type": f"{kind}.delta", **where, "delta": piece} for piece in cut]
    return [*found, {"type": f"{kind}.done", **where, key: text}]


# The request in the form of chat completions


def as_chat(body: Json) -> Json:
    """Convert a request to Responses into the equivalent one to chat completions."""
    rest = {key: value for key, value in body.items() if key not in ("input", "instructions", "tools")}
    found: Json = {"messages": _messages(body)}
    if "tools" in body:
        found["tools"] = [_chat_tool(tool) for tool in body["tools"]]
    if "max_output_tokens" in rest:
        found["max_tokens"] = rest.pop("max_output_tokens")
    if isinstance(choice := rest.get("tool_choice"), dict):
        rest["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    if rest.get("stream"):
        rest["stream_options"] = {"include_usage": True}
    return {**rest, **found}


def _chat_tool(tool: Json) -> Json:
    assert isinstance(tool["strict"], bool)
    left = ("type",) if tool["strict"] else ("type", "strict")
    return {"type": "function", "function": {key: tool[key] for key in tool if key not in left}}


def _messages(body: Json) -> list[Json]:
    found: list[Json] = []
    if body.get("instructions"):
        found.append({"role": "system", "content": body["instructions"]})
    for item in body["input"]:
        last: Json | None = found[-1] if found and found[-1]["role"] == "assistant" else None
        if item["type"] == "function_call":
            call = {"name": item["name"], "arguments": item["arguments"]}
            made = {"id": item["call_id"], "type": "function", "function": call}
            if last is None:
                last = {"role": "assistant"}
                found.append(last)
            last.setdefault("tool_calls", []).append(made)
        elif item["type"] == "function_call_output":
            found.append({"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])})
        elif item["type"] == "message":
            found.append({"role": item["role"], "content": _content(item["content"])})
    return found


def _content(parts: list[Json]) -> Any:
    if len(parts) == 1 and "text" in parts[0]:
        return parts[0]["text"]
    return [
        {"type": "image_url", "image_url": {"url": part["image_url"]}}
        if part["type"] == "input_image"
        else {"type": "text", "text": part["text"]}
        for part in parts
    ]

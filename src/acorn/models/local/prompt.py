"""A conversation with tools for a model that knows none: the tools described in words, calls and results as text.

The grammar sees to the form; the words are for the sense. A small model with one tool is told the names of the
fields and no more: told the values too, it takes the first. Pure; called by the local adapter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from acorn._formats.schema.generate import JsonSchema, resolve_ref

_DEPTH = 6
"""How deep the words go into a schema: through fields, lists and unions."""


def flatten(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, is_small: bool
) -> list[dict[str, str]]:
    """Messages of text alone, in turns: system, user, assistant, user..."""
    described = _described(tools, is_small)
    turns: list[tuple[str, str]] = [("system", described)] if described else []
    for message in messages:
        role, text = _line(message, is_named=len(tools) != 1)
        if role == "system" and described:
            turns[0] = ("system", f"{text}\n\n{described}")
            described = ""
        elif turns and turns[-1][0] == role:
            turns[-1] = (role, f"{turns[-1][1]}\n{text}")
        else:
            turns.append((role, text))
    return [{"role": role, "content": text} for role, text in turns]


def _line(message: Mapping[str, Any], *, is_named: bool) -> tuple[str, str]:
    """Who speaks, and what is said."""
    role, text = str(message["role"]), _text(message.get("content"))
    if role in ("system", "developer"):
        return "system", text
    if role == "tool":
        return "user", f"Result: {text}"
    if role == "assistant":
        calls = [_call(call["function"], is_named) for call in message.get("tool_calls") or ()]
        return role, "\n".join(filter(None, (text, *calls)))
    return "user", text


def _call(function: Mapping[str, Any], is_named: bool) -> str:
    if not is_named:
        return str(function["arguments"])
    return f'{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}'


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join([part["text"] for part in content])


# The tools in words


def _described(tools: Sequence[Mapping[str, Any]], is_small: bool) -> str:
    if not tools:
        return ""
    if len(tools) == 1:
        schema = tools[0].get("parameters") or {}
        if is_small:
            return f"Reply only with JSON that has {_Outline(schema).of(schema, _DEPTH)}"
        return f"Reply only with JSON that fits this schema: {json.dumps(schema, ensure_ascii=False)}"
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    last = 'Call one of them. Reply only with JSON: {"name": the tool, "arguments": {...}}'
    return "\n".join(["You have these tools:", "<tools>", *lines, "</tools>", last])


class _Outline:
    """The names of a schema's fields, with their descriptions: {"name": ..., "age": in years}."""

    def __init__(self, root: JsonSchema) -> None:
        self._root = root
        self._known: dict[tuple[str, int], str] = {}

    def of(self, schema: Any, depth: int) -> str:
        if not isinstance(schema, Mapping) or depth == 0:
            return "..."
        if "$ref" in schema:
            return self._definition(str(schema["$ref"]), depth)
        if members := schema.get("properties"):
            inner = [f"{json.dumps(name, ensure_ascii=False)}: {self._field(members[name], depth)}" for name in members]
            return "{" + ", ".join(inner) + "}"
        if "items" in schema:
            return f"[{self.of(schema['items'], depth - 1)}]"
        options = [option for union in ("anyOf", "oneOf", "allOf") for option in schema.get(union, ())]
        outlines = (self.of(option, depth - 1) for option in options)
        return next((words for words in outlines if words != "..."), "...")

    def _definition(self, reference: str, depth: int) -> str:
        known = (reference, depth)
        if known not in self._known:
            self._known[known] = "..."  # for a definition that is nothing but itself
            self._known[known] = self.of(resolve_ref(reference, self._root), depth)
        return self._known[known]

    def _field(self, schema: Any, depth: int) -> str:
        outline = self.of(schema, depth - 1)
        described = schema.get("description") if isinstance(schema, Mapping) else None
        return " ".join(str(described).split()).rstrip(".") if described and outline == "..." else outline

"""Translation of a conversation with tools into plain text, for a model that was not trained for tools.

The grammar enforces the format of the reply. The text explains the meaning. A small model with one tool only gets the
names of the fields: if it also gets the possible values, it copies the first one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from acorn._formats.schema.generate import JsonSchema, resolve_ref
from acorn.types import Content, JsonObject, is_mapping

_DEPTH = 6
"""The number of levels of a schema to describe: fields, lists and unions."""


def flatten(messages: Sequence[JsonObject], tools: Sequence[JsonObject], *, is_small: bool) -> list[dict[str, str]]:
    """Return messages that contain only text, with alternating roles: system, user, assistant, user..."""
    tools_text = _describe_tools(tools, is_small)
    turns: list[tuple[str, str]] = [("system", tools_text)] if tools_text else []
    for message in messages:
        role, text = _role_and_text(message, is_named=len(tools) != 1)
        if role == "system" and tools_text:
            turns[0] = ("system", f"{text}\n\n{tools_text}")
            tools_text = ""
        elif turns and turns[-1][0] == role:
            turns[-1] = (role, f"{turns[-1][1]}\n{text}")
        else:
            turns.append((role, text))
    return [{"role": role, "content": text} for role, text in turns]


def _role_and_text(message: JsonObject, *, is_named: bool) -> tuple[str, str]:
    """Return the role and the text of a message. `is_named` says that calls need the name of their tool."""
    role, text = str(message["role"]), _text(message.get("content"))
    if role in ("system", "developer"):
        return "system", text
    if role == "tool":
        return "user", f"Result: {text}"
    if role == "assistant":
        calls = [_call(call["function"], is_named) for call in message.get("tool_calls") or ()]
        return role, "\n".join(filter(None, (text, *calls)))
    return "user", text


def _call(function: JsonObject, is_named: bool) -> str:
    if not is_named:
        return str(function["arguments"])
    return f'{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}'


def _text(content: Content | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join([part["text"] for part in content])


# The description of the tools


def _describe_tools(tools: Sequence[JsonObject], is_small: bool) -> str:
    if not tools:
        return ""
    if len(tools) == 1:
        schema: JsonObject = tools[0].get("parameters") or {}
        if is_small:
            return f"Reply only with JSON that has {_Outline(schema).of(schema, _DEPTH)}"
        return f"Reply only with JSON that fits this schema: {json.dumps(schema, ensure_ascii=False)}"
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    last = 'Call one of them. Reply only with JSON: {"name": the tool, "arguments": {...}}'
    return "\n".join(["You have these tools:", "<tools>", *lines, "</tools>", last])


class _Outline:
    """Writes the names and descriptions of a schema's fields: {"name": ..., "age": in years}."""

    def __init__(self, root: JsonSchema) -> None:
        self._root = root
        self._definitions: dict[tuple[str, int], str] = {}

    def of(self, schema: object, depth: int) -> str:
        if not is_mapping(schema) or depth == 0:
            return "..."
        if "$ref" in schema:
            return self._definition(str(schema["$ref"]), depth)
        if properties := schema.get("properties"):
            fields = [
                f"{json.dumps(name, ensure_ascii=False)}: {self._field(properties[name], depth)}" for name in properties
            ]
            return "{" + ", ".join(fields) + "}"
        if "items" in schema:
            return f"[{self.of(schema['items'], depth - 1)}]"
        options = [option for union in ("anyOf", "oneOf", "allOf") for option in schema.get(union, ())]
        outlines = (self.of(option, depth - 1) for option in options)
        return next((outline for outline in outlines if outline != "..."), "...")

    def _definition(self, reference: str, depth: int) -> str:
        key = (reference, depth)
        if key not in self._definitions:
            self._definitions[key] = "..."  # For a definition that only refers to itself.
            self._definitions[key] = self.of(resolve_ref(reference, self._root), depth)
        return self._definitions[key]

    def _field(self, schema: object, depth: int) -> str:
        outline = self.of(schema, depth - 1)
        description = schema.get("description") if is_mapping(schema) else None
        return " ".join(str(description).split()).rstrip(".") if description and outline == "..." else outline

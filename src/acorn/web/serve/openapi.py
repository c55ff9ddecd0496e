"""The description of the service in OpenAPI 3.1, with the schemas of the input and the output as they are. Pure."""

from __future__ import annotations

import re
from typing import Any

import acorn
from acorn._inside import RESULT, Shape, describe_agent, output_schema
from acorn.types import JsonObject

Plain = JsonObject
_DEFS = "#/$defs/"
_DATA = ("default", "examples", "example", "const", "enum")
"""Keywords behind which stands data, and no schema."""
_ERRORS = {
    "400": "The request cannot be understood.",
    "401": "The key is missing or wrong.",
    "403": "The Host or the Origin is not the server's own.",
    "413": "The body is too long.",
    "415": "The body is no `application/json`.",
    "422": "The input does not fit; `problems` says where.",
    "429": "So many runs are under way that another one has to wait.",
    "500": "The agent failed.",
    "502": "The provider failed, or the model never gave a valid answer.",
    "503": "The server is ending.",
    "504": "The provider or the run took too long.",
}
_ERROR: Plain = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "problems": {"type": "array", "items": {"$ref": "#/components/schemas/Problem"}},
            },
        }
    },
}
_PROBLEM: Plain = {
    "type": "object",
    "required": ["path", "message"],
    "properties": {name: {"type": "string"} for name in ("path", "expected", "received", "message")},
}
_PAUSED: Plain = {
    "type": "object",
    "description": "The run waits for people.",
    "required": ["run_id", "requests", "answer"],
    "properties": {
        "run_id": {"type": "string"},
        "answer": {"type": "string", "description": "The path to which the answer is posted."},
        "requests": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "kind", "question"],
                "properties": {
                    "id": {"type": "string"},
                    "kind": {"enum": ["question", "approval"]},
                    "question": {"type": "string"},
                    "tool": {"type": "string"},
                    "arguments": {"type": "object"},
                    "choices": {"type": ["array", "null"], "items": {"type": "string"}},
                },
            },
        },
    },
}
_ANSWER: Plain = {
    "type": "object",
    "properties": {
        "answer": {"description": "The answer, where the run waits for one request."},
        "answers": {"type": "object", "description": "An answer for each request, by its id."},
    },
    "additionalProperties": False,
}
_COMPLETION: Plain = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "model": {"type": "string"},
        "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role", "content"]}},
        "stream": {"type": "boolean"},
        "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
    },
}


def described(agent: Any, *, has_key: bool) -> Plain:
    """The whole document."""
    spec = describe_agent(agent)
    parts: Plain = {"Error": _ERROR, "Problem": _PROBLEM, "Paused": _PAUSED}
    parts["Input"] = _schema(spec.input, spec.input.xml_schema, "Input", parts)
    parts["Output"] = _schema(spec.output, output_schema(spec.output), "Output", parts)
    ended = {"200": _gives("The output.", "Output"), "202": _gives("The run waits for people.", "Paused")}
    name = type(agent).__name__
    takes_nothing = spec.input.is_empty
    document: Plain = {
        "openapi": "3.1.0",
        "info": {
            "title": name,
            "version": acorn.__version__,
            "description": " ".join(spec.docstring.split()),
        },
        "paths": {
            "/run": {"post": _act("run", "Run the agent.", _ref("Input"), ended, optional=takes_nothing)},
            "/stream": {
                "post": _act(
                    "stream", "Run the agent, and send its chunks.", _ref("Input"), _EVENTS, optional=takes_nothing
                )
            },
            "/runs/{id}/answer": {
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
                "post": _act("answer", "Answer what a run waits for, and go on with it.", _ANSWER, ended, "404", "409"),
            },
            "/v1/chat/completions": {
                "post": _act("chat", "OpenAI's chat completions.", _COMPLETION, _COMPLETED, "404")
            },
            "/v1/models": {"get": _act("models", "OpenAI's list of models: the agent.", None, _LISTED)},
            "/openapi.json": {"get": _act("describe", "This document.", None, _LISTED)},
            "/health": {"get": _act("health", "Whether the server is there.", None, _LISTED, security=False)},
        },
        "components": {"schemas": parts},
    }
    if has_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _schema(shape: Shape, schema: Plain, prefix: str, parts: Plain) -> Plain:
    """A schema whose definitions stand among the parts of the document."""
    for name, definition in schema.get("$defs", {}).items():
        parts[_part(prefix, name)] = _moved(definition, prefix)
    own = {key: value for key, value in schema.items() if key != "$defs"}
    if shape.is_empty and prefix == "Output":
        return {"type": "null"}
    found: Plain = _moved(own["properties"][RESULT] if shape.wrapped else own, prefix)
    return found


def _part(prefix: str, name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name.replace("~1", "/").replace("~0", "~"))
    return f"{prefix}.{plain}"


def _moved(node: Any, prefix: str) -> Any:
    """The same with references into the parts of the document."""
    if isinstance(node, str):
        return f"#/components/schemas/{_part(prefix, node.removeprefix(_DEFS))}" if node.startswith(_DEFS) else node
    if isinstance(node, list):
        return [_moved(item, prefix) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: value if key in _DATA and not _is_schema(value) else _moved(value, prefix) for key, value in node.items()
    }


def _is_schema(value: Any) -> bool:
    """Whether a field is called like a keyword: then a schema stands behind its name."""
    return isinstance(value, dict) and bool(value.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf"})


def _ref(name: str) -> Plain:
    return {"$ref": f"#/components/schemas/{name}"}


def _gives(words: str, name: str) -> Plain:
    return {"description": words, "content": {"application/json": {"schema": _ref(name)}}}


_EVENTS: Plain = {
    "200": {"description": "Chunks, one JSON object an event.", "content": {"text/event-stream": {"schema": {}}}}
}
_LISTED: Plain = {
    "200": {"description": "As it says.", "content": {"application/json": {"schema": {"type": "object"}}}}
}
_COMPLETED: Plain = {
    "200": {
        "description": "The answer, whole or as a stream.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {"schema": {}}},
    },
    "202": {
        "description": "The run waits for people; its question is the answer.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    },
}
_MORE = {"404": "There is no such run or model.", "409": "The run cannot go on."}


def _act(
    name: str,
    words: str,
    takes: Plain | None,
    gives: Plain,
    *more: str,
    optional: bool = False,
    security: bool = True,
) -> Plain:
    """One operation."""
    wrong = {**_ERRORS, **{each: _MORE[each] for each in more}} if takes is not None else {}
    act: Plain = {
        "operationId": name,
        "summary": words,
        "responses": {**gives, **{status: _gives(said, "Error") for status, said in sorted(wrong.items())}},
    }
    if takes is not None:
        act["requestBody"] = {"required": not optional, "content": {"application/json": {"schema": takes}}}
    return act if security else {**act, "security": []}

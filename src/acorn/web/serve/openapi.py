"""The OpenAPI 3.1 document of the service. It contains the JSON Schemas of the agent input and output."""

from __future__ import annotations

from typing import Literal

from pydantic import TypeAdapter

import acorn
from acorn import Request
from acorn._inside import RESULT, Shape, component_schema, describe_agent
from acorn.types import JsonObject
from acorn.web.page.agent import Agent

_ERRORS = {
    "400": "The request is invalid.",
    "401": "The key is missing or wrong.",
    "403": "The Host header or the Origin header is not allowed.",
    "413": "The request body is too large.",
    "415": "The content type of the request is not `application/json`.",
    "422": "The input is invalid. `problems` lists the invalid fields.",
    "429": "Too many runs are in progress.",
    "500": "The agent failed.",
    "502": "The provider failed, or the model never returned a valid answer.",
    "503": "The server is stopping.",
    "504": "The provider did not respond in time, or the run took too long.",
}
_ERROR: JsonObject = {
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
_PROBLEM: JsonObject = {
    "type": "object",
    "required": ["path", "message"],
    "properties": {name: {"type": "string"} for name in ("path", "expected", "received", "message")},
}
_REQUEST = {**TypeAdapter(Request).json_schema(), "description": "A question or an approval."}
_PAUSED: JsonObject = {
    "type": "object",
    "description": "The run waits for human input.",
    "required": ["run_id", "requests", "answer"],
    "properties": {
        "run_id": {"type": "string"},
        "answer": {"type": "string", "description": "The path to which the client posts the answer."},
        "requests": {
            "type": "array",
            "items": {**TypeAdapter(Request).json_schema(), "description": "A question or an approval."},
        },
    },
}
_ANSWER: JsonObject = {
    "type": "object",
    "properties": {
        "answer": {"description": "The answer to the only open request of the run."},
        "answers": {"type": "object", "description": "An object that maps request ids to answers."},
    },
    "additionalProperties": False,
}
_COMPLETION: JsonObject = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "model": {"type": "string"},
        "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role", "content"]}},
        "stream": {"type": "boolean"},
        "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
    },
}


def openapi_document(agent: Agent, *, has_key: bool) -> JsonObject:
    """Return the OpenAPI document for the service of an agent."""
    description = describe_agent(agent)
    schemas: JsonObject = {"Error": _ERROR, "Problem": _PROBLEM, "Paused": _PAUSED}
    _add_schema("Input", description.input, schemas)
    _add_schema("Output", description.output, schemas)
    results = {"200": _response("The output.", "Output"), "202": _response("The run waits for human input.", "Paused")}
    has_no_input = description.input.is_empty
    document: JsonObject = {
        "openapi": "3.1.0",
        "info": {
            "title": description.name,
            "version": acorn.__version__,
            "description": " ".join(description.docstring.split()),
        },
        "paths": {
            "/run": {"post": _operation("run", "Run the agent.", _ref("Input"), results, optional=has_no_input)},
            "/stream": {
                "post": _operation(
                    "stream", "Run the agent and stream its chunks.", _ref("Input"), _EVENTS, optional=has_no_input
                )
            },
            "/runs/{id}/answer": {
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
                "post": _operation(
                    "answer", "Answer the requests of a paused run and resume the run.", _ANSWER, results, "404", "409"
                ),
            },
            "/v1/chat/completions": {
                "post": _operation(
                    "chat", "Create a chat completion in OpenAI's format.", _COMPLETION, _COMPLETED, "404"
                )
            },
            "/v1/models": {"get": _operation("models", "Return the agent in OpenAI's list of models.", None, _OBJECT)},
            "/openapi.json": {"get": _operation("describe", "Return this document.", None, _OBJECT)},
            "/health": {
                "get": _operation(
                    "health", "Return whether the server is running or stopping.", None, _OBJECT, security=False
                )
            },
        },
        "components": {"schemas": schemas},
    }
    if has_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _add_schema(name: Literal["Input", "Output"], shape: Shape, schemas: JsonObject) -> None:
    """Add the schema of the input or the output of the agent, and the definitions in it, to the component schemas."""
    if shape.is_empty and name == "Output":
        schemas[name] = {"type": "null"}
        return
    schema = component_schema(shape.schema, f"{name}.", "validation" if name == "Input" else "serialization")
    schemas |= {f"{name}.{key}": definition for key, definition in schema.pop("$defs", {}).items()}
    schemas[name] = schema["properties"][RESULT] if shape.wrapped else schema


def _ref(name: str) -> JsonObject:
    return {"$ref": f"#/components/schemas/{name}"}


def _response(description: str, name: str) -> JsonObject:
    return {"description": description, "content": {"application/json": {"schema": _ref(name)}}}


_EVENTS: JsonObject = {
    "200": {
        "description": "A stream of chunks, with one JSON object in each event.",
        "content": {"text/event-stream": {"schema": {}}},
    }
}
_OBJECT: JsonObject = {
    "200": {"description": "A JSON object.", "content": {"application/json": {"schema": {"type": "object"}}}}
}
_COMPLETED: JsonObject = {
    "200": {
        "description": "The complete answer, or a stream of the answer.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {"schema": {}}},
    },
    "202": {
        "description": "The run waits for human input. The answer contains its questions.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    },
}
_MORE_ERRORS = {"404": "The run or the model does not exist.", "409": "The run cannot be resumed."}


def _operation(
    name: str,
    summary: str,
    body: JsonObject | None,
    responses: JsonObject,
    *more_errors: str,
    optional: bool = False,
    security: bool = True,
) -> JsonObject:
    """Return the OpenAPI description of one endpoint and its responses."""
    errors = {**_ERRORS, **{status: _MORE_ERRORS[status] for status in more_errors}} if body is not None else {}
    operation: JsonObject = {
        "operationId": name,
        "summary": summary,
        "responses": {
            **responses,
            **{status: _response(description, "Error") for status, description in sorted(errors.items())},
        },
    }
    if body is not None:
        operation["requestBody"] = {"required": not optional, "content": {"application/json": {"schema": body}}}
    return operation if security else {**operation, "security": []}

"""The OpenAPI 3.1 document of the service. It contains the JSON Schemas of the agent input and output."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode

import acorn
from acorn import Request
from acorn._inside import RESULT, component_schema, read_spec
from acorn.types import JsonObject
from acorn.web.page.agent import Agent, docstring_line
from acorn.web.serve.openai_api import CompletionRequest


class InputProblem(BaseModel):
    """A wrong field of an input."""

    path: str
    expected: str | None = None
    received: str | None = None
    message: str


class ErrorDescription(BaseModel):
    """The reason why a request failed. `problems` lists the wrong fields of an input."""

    type: str
    message: str
    problems: list[InputProblem] = []


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorDescription


class PausedBody(BaseModel):
    """The body of a response about a run that waits for human input. The client posts answers to the path `answer`."""

    run_id: str
    requests: list[Request]
    answer: str


class RunAnswers(BaseModel, extra="forbid"):
    """An answer to the only open request of a run, or an object that maps request ids to answers."""

    answer: object = None
    answers: dict[str, object] = {}


_EVENTS: JsonObject = {"text/event-stream": {"schema": {}}}


def openapi_document(agent: Agent, *, has_key: bool) -> JsonObject:
    """Return the OpenAPI document for the service of an agent."""
    spec = read_spec(agent)
    schemas: JsonObject = {}
    _add_schema("Answer", RunAnswers, "validation", schemas)
    _add_schema("Error", ErrorBody, "serialization", schemas)
    _add_schema("Paused", PausedBody, "serialization", schemas)
    _add_schema("Completion", CompletionRequest, "validation", schemas)
    _add_schema("Input", spec.input.schema, "validation", schemas)
    _add_schema("Output", spec.output.schema, "serialization", schemas)
    for name, shape in (("Input", spec.input), ("Output", spec.output)):
        if shape.wrapped:
            schemas[name] = schemas[name]["properties"][RESULT]
    if spec.output.is_empty:
        schemas["Output"] = {"type": "null"}
    needs_input = not spec.input.is_empty
    output, paused, json_object = _json(_ref("Output")), _json(_ref("Paused")), _json({"type": "object"})
    run_id: JsonObject = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    document: JsonObject = {
        "openapi": "3.1.0",
        "info": {
            "title": spec.owner,
            "version": acorn.__version__,
            "description": docstring_line(agent),
        },
        "paths": {
            "/run": {
                "post": _operation("run", "Run the agent.", output, paused) | _body("Input", is_required=needs_input)
            },
            "/stream": {
                "post": _operation("stream", "Run the agent and stream its chunks.", _EVENTS)
                | _body("Input", is_required=needs_input)
            },
            "/runs/{id}/answer": {
                "parameters": [run_id],
                "post": _operation("answer", "Answer the requests of a paused run and resume the run.", output, paused)
                | _body("Answer"),
            },
            "/v1/chat/completions": {
                "post": _operation(
                    "chat", "Create a chat completion in OpenAI's format.", json_object | _EVENTS, json_object
                )
                | _body("Completion")
            },
            "/v1/models": {"get": _operation("models", "Return the agent in OpenAI's list of models.", json_object)},
            "/openapi.json": {"get": _operation("describe", "Return this document.", json_object)},
            "/health": {
                "get": _operation("health", "Return whether the server is running or stopping.", json_object)
                | {"security": []}
            },
        },
        "components": {"schemas": schemas},
    }
    if has_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _add_schema(name: str, source: type[BaseModel], mode: JsonSchemaMode, schemas: JsonObject) -> None:
    """Add the schema of a Pydantic class, and the definitions in it, to the component schemas."""
    schema = component_schema(source, f"{name}.", mode)
    schemas |= {f"{name}.{key}": definition for key, definition in schema.pop("$defs", {}).items()}
    schemas[name] = schema


def _ref(name: str) -> JsonObject:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: JsonObject) -> JsonObject:
    return {"application/json": {"schema": schema}}


def _body(name: str, *, is_required: bool = True) -> JsonObject:
    return {"requestBody": {"required": is_required, "content": _json(_ref(name))}}


def _operation(name: str, summary: str, result: JsonObject, paused: JsonObject | None = None) -> JsonObject:
    """Return the OpenAPI description of one endpoint and its responses.

    `result` is the content of a successful response. `paused` is the content of a response about a paused run.
    """
    responses: JsonObject = {
        "200": {"description": "The result.", "content": result},
        "4XX": {"description": "The request was rejected.", "content": _json(_ref("Error"))},
        "5XX": {"description": "The agent, its model or the server failed.", "content": _json(_ref("Error"))},
    }
    if paused is not None:
        responses["202"] = {"description": "The run waits for human input.", "content": paused}
    return {"operationId": name, "summary": summary, "responses": responses}

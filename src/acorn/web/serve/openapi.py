"""The OpenAPI 3.1 document of the service. It contains the JSON Schemas of the agent input and output."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import JsonSchemaMode

import acorn
from acorn import Request
from acorn._inside import Agent, Spec, component_schema, read_spec
from acorn.types import JsonObject
from acorn.web.page.agent import docstring_line
from acorn.web.serve.openai_api import CompletionRequest


class InputProblem(BaseModel):
    """A wrong field of an input."""

    path: str
    expected: str | None = None
    received: str | None = None
    message: str


class ErrorDescription(BaseModel):
    """The reason why a request failed.

    `problems` lists the first wrong fields of an input. `run_id` is the id of a run that waits for a person.
    """

    type: str
    message: str
    problems: list[InputProblem] = Field([], max_length=20)
    run_id: str | None = None


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorDescription


class PausedBody(BaseModel):
    """The body of a response about a run that waits for human input.

    A person with an approver key posts answers to the path `answer`.
    """

    run_id: str
    requests: list[Request]
    answer: str


class Approval(BaseModel, extra="forbid"):
    """The approval of a tool call, with the arguments that the request shows, or with `arguments` instead."""

    approved: Literal[True]
    arguments: dict[str, object] | None = None


class Rejection(BaseModel, extra="forbid"):
    """The rejection of a tool call. The model reads the reason."""

    approved: Literal[False]
    reason: str | None = None


Answer = Approval | Rejection | bool | Literal["yes", "no"] | object


class RunAnswers(BaseModel, extra="forbid"):
    """An answer to the only open request of a run, or an object that maps request ids to answers.

    The answer to an approval is an `Approval`, a `Rejection`, a boolean, or the word yes or no. The answer to a
    question is any value. With an empty object `answers`, the client that has started the run continues it.
    """

    answer: Answer = None
    answers: dict[str, Answer] = {}


_EVENTS: JsonObject = {"text/event-stream": {"schema": {}}}


def openapi_document(agent: Agent, *, has_key: bool, has_approver_key: bool) -> JsonObject:
    """Return the OpenAPI document for the service of an agent.

    `has_key` and `has_approver_key` say whether the service has keys of clients and of people who answer requests.
    """
    spec = read_spec(agent)
    output, paused, any_json = _json(_ref("Output")), _json(_ref("Paused")), _json({"type": "object"})
    input_body = _body("Input", is_required=not spec.input.is_empty)
    run_id: JsonObject = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    summary = "Answer the requests of a paused run, which needs an approver key, and resume the run."
    answer = _operation("answer", summary, output, paused)
    chat = _operation("chat", "Create a chat completion in OpenAI's format.", any_json | _EVENTS)
    models = _operation("models", "Return the agent in OpenAI's list of models.", any_json)
    health = _operation("health", "Return whether the server is running or stopping.", any_json)
    document: JsonObject = {
        "openapi": "3.1.0",
        "info": {"title": spec.owner, "version": acorn.__version__, "description": docstring_line(agent)},
        "paths": {
            "/run": {"post": _operation("run", "Run the agent.", output, paused) | input_body},
            "/stream": {"post": _operation("stream", "Run the agent and stream its chunks.", _EVENTS) | input_body},
            "/runs/{id}/answer": {"parameters": [run_id], "post": answer | _body("Answer")},
            "/v1/chat/completions": {"post": chat | _body("Completion")},
            "/v1/models": {"get": models},
            "/openapi.json": {"get": _operation("describe", "Return this document.", any_json)},
            "/health": {"get": health | {"security": []}},
        },
        "components": {"schemas": _component_schemas(spec)},
    }
    schemes: JsonObject = {}
    if has_key:
        schemes["key"] = {"type": "http", "scheme": "bearer", "description": "The key of a client."}
        document["security"] = [{"key": []}]
    if has_approver_key:
        description = "The key of a person who may answer the requests of all runs."
        schemes["approverKey"] = {"type": "http", "scheme": "bearer", "description": description}
        security: list[JsonObject] = [{"approverKey": []}, *document.get("security", [])]
        document["paths"]["/runs/{id}/answer"]["post"]["security"] = security
    if schemes:
        document["components"]["securitySchemes"] = schemes
    return document


def _component_schemas(spec: Spec) -> JsonObject:
    """Return the schemas of all requests and responses, and the definitions in them."""
    sources: list[tuple[str, type[BaseModel], JsonSchemaMode]] = [
        ("Answer", RunAnswers, "validation"),
        ("Error", ErrorBody, "serialization"),
        ("Paused", PausedBody, "serialization"),
        ("Completion", CompletionRequest, "validation"),
        ("Input", spec.input.schema, "validation"),
        ("Output", spec.output.schema, "serialization"),
    ]
    schemas: JsonObject = {}
    for name, source, mode in sources:
        schema = component_schema(source, f"{name}.", mode)
        schemas |= {f"{name}.{key}": definition for key, definition in schema.pop("$defs", {}).items()}
        schemas[name] = schema
    for name, shape in (("Input", spec.input), ("Output", spec.output)):
        if shape.wrapped:
            schemas[name] = schemas[name]["properties"][shape.wrapped]
    if spec.output.is_empty:
        schemas["Output"] = {"type": "null"}
    return schemas


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

"""Judging an answer: the arguments of `__finish__`, or the XML form filled in.

An answer is an instance of the output schema, or a list of what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from acorn._schema.problems import Problem, problems, public
from acorn._schema.shape import Shape
from acorn._tools.collect import FINISH
from acorn._xml.decode import read
from acorn._xml.report import error_document
from acorn._xml.skeleton import skeleton
from acorn.errors import ParseError

_INSTRUCTION = "You must provide your final answer now. Respond with your answer in the following XML structure:"
_CLOSING = "Fill in the values. Do not repeat the descriptions."


@dataclass(frozen=True)
class Verdict:
    """What became of one answer."""

    raw: str
    instance: BaseModel | None = None
    wrong: list[Problem] = field(default_factory=list[Problem])
    message: str = "Output validation failed"

    @property
    def document(self) -> str:
        """What the model is told."""
        return error_document(self.wrong, self.message)


def judge_arguments(shape: Shape, arguments: str, *, cut_off: bool, max_tokens: int) -> Verdict:
    """The arguments of a `__finish__` call."""
    text = arguments or "{}"
    try:
        return Verdict(text, shape.schema.model_validate_json(text, by_alias=True, by_name=True))
    except ValidationError as error:
        wrong = problems(error, shape.json_schema, _parsed(text))
    if cut_off and _parsed(text) is None:
        return Verdict(text, None, wrong, _cut_off(max_tokens))
    return Verdict(text, None, wrong)


def judge_xml(shape: Shape, content: str, root: str, *, cut_off: bool, max_tokens: int) -> Verdict:
    """A reply in the XML form."""
    try:
        data = read(content, shape.xml_schema, root)
    except ParseError as error:
        message = _cut_off(max_tokens) if cut_off else str(error)
        return Verdict(content, None, [], message)
    try:
        text = to_json(data, inf_nan_mode="constants")
        return Verdict(content, shape.schema.model_validate_json(text, by_alias=True, by_name=True))
    except ValidationError as error:
        return Verdict(content, None, problems(error, shape.xml_schema, data))


def judge_fields(shape: Shape, fields: dict[str, Any], owner: str) -> BaseModel:
    """The fields that a user gave to `step.finish`."""
    try:
        return shape.schema.model_validate(fields, by_alias=True, by_name=True)
    except ValidationError as error:
        wrong = problems(error, shape.json_schema, fields)
        told = "; ".join(f"`{p['path'] or 'output'}` must be {p['expected']}, got {p['received']}" for p in wrong)
        raise ParseError(
            f"`step.finish` of `{owner}` was given an output that does not fit: {told}.",
            raw_output=str(fields),
            errors=public(wrong),
        ) from error


def no_answer(content: str) -> Verdict:
    """A reply that neither called `__finish__` nor anything else."""
    return Verdict(content, None, [], f"No tool was called. Call `{FINISH}` with your answer.")


def rejected(text: str, raw: str) -> Verdict:
    """An answer that `on_finish` would not have."""
    return Verdict(raw, None, [Problem(path="", expected=text, received=raw[:200], told=raw[:200], ruled=True)], text)


def form(shape: Shape, root: str) -> str:
    """The message that asks for the answer in XML."""
    return f"{_INSTRUCTION}\n{skeleton(shape.xml_schema, root)}\n\n{_CLOSING}"


def finish_definition(shape: Shape) -> dict[str, Any]:
    """The tool that ends the run, as in a request's `function`."""
    return {
        "name": FINISH,
        "description": "Call this with your final answer. It ends the task.",
        "parameters": shape.json_schema,
    }


def _cut_off(max_tokens: int) -> str:
    return (
        f"The reply was cut off at the limit of {max_tokens} tokens before the output was complete. "
        f"Give a shorter answer."
    )


def _parsed(text: str) -> Any:
    try:
        return from_json(text)
    except (ValueError, UnicodeEncodeError):
        return None

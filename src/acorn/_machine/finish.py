"""Judging an answer: the arguments of `__finish__`, or the XML form filled in.

An answer is an instance of the output schema, or a list of what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from acorn._declare.tools.collect import FINISH
from acorn._formats.json import safe_repr, shorten
from acorn._formats.schema.generate import close_objects, is_strict
from acorn._formats.schema.problems import Problem, find_problems, public_problems
from acorn._formats.schema.shape import Shape, _part
from acorn._formats.xml.decode import read_xml
from acorn._formats.xml.encode import error_document, skeleton
from acorn.errors import ParseError
from acorn.types import JsonObject

_INSTRUCTION = "You must provide your final answer now. Respond with your answer in the following XML structure:"
_CLOSING = "Fill in the values. Do not repeat the descriptions."


@dataclass(frozen=True)
class FinishResult:
    """What became of one answer."""

    raw: str
    instance: BaseModel | None = None
    wrong: list[Problem] = field(default_factory=list[Problem])
    message: str = "Output validation failed"
    was_cut: bool = False
    """Whether the token limit is to blame."""
    cause: Exception | None = None
    """What was raised over it."""

    @property
    def document(self) -> str:
        """What the model is told."""
        return error_document(self.wrong, self.message)

    @property
    def complaint(self) -> str:
        """What the user is told."""
        return self.message if self.was_cut or not self.wrong else f"{_in_words(self.wrong)}."


def judge_arguments(shape: Shape, arguments: str, *, cut_off: bool, max_tokens: int) -> FinishResult:
    """The arguments of a `__finish__` call."""
    text = arguments or "{}"
    try:
        return FinishResult(text, shape.schema.model_validate_json(text, by_alias=True, by_name=True))
    except ValidationError as error:
        wrong, cause = find_problems(error, shape.json_schema, _parsed(text)), error
    if cut_off and not _parsed(text):  # cut inside the arguments, or before they began
        return FinishResult(text, None, wrong, _cut_off(max_tokens), was_cut=True, cause=cause)
    return FinishResult(text, None, wrong, cause=cause)


def judge_xml(shape: Shape, content: str, root: str, *, cut_off: bool, max_tokens: int) -> FinishResult:
    """A reply in the XML form."""
    if cut_off and content.rfind(f"</{root}") <= content.rfind(f"<{root}"):  # half an answer reads like a whole one
        return FinishResult(content, None, [], _cut_off(max_tokens), was_cut=True)
    try:
        data = read_xml(content, shape.xml_schema, root)
    except ParseError as error:
        return FinishResult(content, None, [], str(error), cause=error)
    text = to_json(data, inf_nan_mode="constants")
    try:
        return FinishResult(content, shape.schema.model_validate_json(text, by_alias=False, by_name=True))
    except ValidationError as error:
        wrong, cause = find_problems(error, shape.xml_schema, data), error
    try:  # the form has the fields' own names, but the tool's schema has shown their aliases
        return FinishResult(content, shape.schema.model_validate_json(text, by_alias=True, by_name=True))
    except ValidationError:
        return FinishResult(content, None, wrong, cause=cause)


def judge_fields(shape: Shape, fields: dict[str, Any], owner: str) -> BaseModel:
    """The fields that a user gave to `step.finish`."""
    unknown = [] if shape.allows_extra else [name for name in fields if name not in shape._accepted]
    wrong = [_unknown(name, shape, fields) for name in unknown]
    cause: ValidationError | None = None
    try:
        instance = shape.schema.model_validate(fields, by_alias=True, by_name=True)
    except ValidationError as error:
        wrong += [
            problem for problem in find_problems(error, shape._call_schema, fields) if problem["path"] not in unknown
        ]
        cause = error
    else:
        if not wrong:
            return instance
    raise ParseError(
        f"`step.finish` of `{owner}` was given an output that does not fit: {_in_words(wrong)}.",
        raw_output=safe_repr(fields),
        errors=public_problems(wrong),
    ) from cause


def no_answer(content: str, *, cut_off: bool, max_tokens: int) -> FinishResult:
    """A reply in which `__finish__` should have been called and was not."""
    message = f"`{FINISH}` was not called; call it with your answer."
    return FinishResult(content, None, [], _cut_off(max_tokens) if cut_off else message, was_cut=cut_off)


def rejected(error: ValueError, answer: str, raw: str) -> FinishResult:
    """An answer, as JSON, that `on_finish` would not have."""
    shown, text = shorten(answer), str(error) or type(error).__name__
    problem = Problem(path="", expected=text, received=shown, excerpt=shown, ruled=True)
    return FinishResult(raw, None, [problem], text, cause=error)


def form(shape: Shape, root: str) -> str:
    """The message that asks for the answer in XML."""
    return f"{_INSTRUCTION}\n{skeleton(shape.xml_schema, root)}\n\n{_CLOSING}"


@lru_cache(maxsize=256)
def finish_definition(shape: Shape, *, strict: bool = False) -> JsonObject:
    """The tool that ends the run, as in a request's `function`."""
    described = {"name": FINISH, "description": "Call this with your final answer. It ends the task."}
    if strict:
        return {**described, "parameters": close_objects(shape.json_schema), "strict": True}
    return {**described, "parameters": shape.json_schema}


@lru_cache(maxsize=256)
def fits_strictly(shape: Shape) -> bool:
    """Whether the schema of an answer is a strict one as it stands."""
    return is_strict(shape.json_schema)


def _cut_off(max_tokens: int) -> str:
    return (
        f"The reply was cut off at the limit of {max_tokens} tokens before the output was complete; "
        f"a shorter one would fit."
    )


def _in_words(wrong: Sequence[Problem]) -> str:
    return "; ".join(_part({**problem, "path": problem["path"] or "output"}) for problem in wrong)


def _unknown(name: str, shape: Shape, fields: dict[str, Any]) -> Problem:
    known = ", ".join(shape.schema.model_fields) or "none"
    shown = shorten(safe_repr(fields[name]))
    return Problem(path=name, expected=f"no such field; there are {known}", received=shown, excerpt=shown, ruled=True)


def _parsed(text: str) -> Any:
    try:
        return from_json(text)
    except (ValueError, TypeError):  # no JSON, or half a surrogate pair in it
        return None


def out_of_retries(verdict: FinishResult, owner: str, model: str | None, attempts: int) -> ParseError:
    """The error for a run whose corrections are used up."""
    remedy = "`parse_retries`, or make `final_output` easier to fill"
    if verdict.was_cut:
        remedy = "`max_tokens`, or ask for less"
    return ParseError(
        f"`{owner}` got no valid output from `{model}` in {attempts} "
        f"{'attempt' if attempts == 1 else 'attempts'}: {verdict.complaint} Raise {remedy}.",
        raw_output=verdict.raw,
        errors=public_problems(verdict.wrong),
        attempts=attempts,
    )

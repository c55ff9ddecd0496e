"""Validation of the final answer of a run.

An answer comes from the arguments of a `__finish__` call, from XML text, or from the fields that a hook passed to
`step.finish`. The result of the validation is an instance of the output schema, or a list of problems.
This file also counts the retries. The machine sends the correction to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from acorn._declare.spec import Spec
from acorn._declare.tools.collect import FINISH
from acorn._formats.json import read_iterators, safe_repr, shorten
from acorn._formats.schema.generate import close_objects, is_strict
from acorn._formats.schema.problems import (
    Problem,
    describe_problem,
    find_problems,
    join_problems,
    list_names,
    public_problems,
)
from acorn._formats.schema.shape import RESULT, Shape
from acorn._formats.xml.decode import decode_xml, read_xml
from acorn._formats.xml.encode import error_document, skeleton
from acorn._history.saved_form import decode_instance_json
from acorn._machine.state import State
from acorn.errors import ModelError, ParseError
from acorn.models.port import Model, ModelResponse
from acorn.record import Run
from acorn.types import JsonObject, ToolCall

_INSTRUCTION = "You must provide your final answer now. Respond with your answer in the following XML structure:"
_CLOSING = "Fill in the values. Do not repeat the descriptions."


@dataclass(frozen=True)
class FinishResult:
    """The result of validating one answer: the valid output, or a list of problems."""

    raw: str
    instance: BaseModel | None = None
    """The answer as an instance of the output schema, or None if the answer is invalid."""
    problems: list[Problem] = field(default_factory=list[Problem])
    message: str = "Output validation failed"
    was_cut: bool = False
    """Whether the token limit cut off the answer."""
    cause: Exception | None = None

    @property
    def document(self) -> str:
        """The text that describes the problems to the model."""
        return error_document(self.problems, self.message)

    @property
    def user_message(self) -> str:
        """The text that describes the problems to the user, for error messages."""
        return self.message if self.was_cut or not self.problems else f"{_describe(self.problems)}."


@dataclass(eq=False)
class Answers:
    """The part of a machine that validates answers, counts retries, and stores the answer for `on_finish`."""

    spec: Spec
    run: Run
    state: State
    candidate: BaseModel | None = None
    """The last valid answer, which `on_finish` may still reject."""

    def judge_calls(self, calls: Sequence[ToolCall], cut_at: int | None) -> tuple[FinishResult, str | None]:
        """Validate the `__finish__` calls of a response. `cut_at` is the token limit that cut it off, or None.

        Return the first valid answer and the id of its call. If no answer is valid, return the problems of the first
        call, and None.
        """
        faults = self.state.faults = {}
        failure: FinishResult | None = None
        for call in calls:
            if call.name != FINISH:
                continue
            result = judge_arguments(self.spec.output, call.raw_arguments, cut_at)
            if result.instance is not None:
                return result, call.id
            faults[call.id] = result.document
            failure = failure or result
        assert failure is not None
        return failure, None

    def spend_retry(self, result: FinishResult) -> None:
        """Count one retry. Raise `ParseError` if all retries are used up."""
        attempts = self.state.corrections + 1
        if attempts > self.spec.parse_retries:
            raise out_of_retries(result, self.spec.owner, self.run.model, attempts) from result.cause
        self.state.corrections = attempts

    def reject(self, error: ValueError) -> FinishResult:
        """Return the problems to send to the model after `on_finish` rejected the last valid answer."""
        shown, text = shorten(self.state.answer or ""), str(error) or type(error).__name__
        problem = Problem(path="", expected=text, received=shown, excerpt=shown, text=text, kind="invalid")
        return FinishResult(self._raw_text(), None, [problem], text, cause=error)

    def restore(self) -> None:
        """Create the answer instance of a loaded run again, because a saved run contains the answer only as JSON."""
        if self.state.answer is not None and self.state.phase == "judge":
            arguments = self._finish_arguments()
            text = self.state.answer if arguments is None else arguments
            self.candidate = decode_instance_json(self.spec.output.schema, text, "answer")

    def _raw_text(self) -> str:
        """Return the exact text of the last valid answer: call arguments, XML, or JSON of `step.finish` fields."""
        state, arguments = self.state, self._finish_arguments()
        if arguments is not None:
            return arguments
        if state.fallback and state.response is not None:
            return state.response.content
        return state.answer or ""

    def _finish_arguments(self) -> str | None:
        calls = self.state.calls
        return next((call.raw_arguments for call in calls if call.id == self.state.answered_by), None)


def judge_arguments(shape: Shape, arguments: str, cut_at: int | None = None) -> FinishResult:
    """Validate the arguments of a `__finish__` call. `cut_at` is the token limit that cut off the response, or None."""
    text = arguments or "{}"
    try:
        return FinishResult(text, read_iterators(shape.schema.model_validate_json(text, by_alias=True, by_name=True)))
    except ValidationError as error:
        found, cause = find_problems(error, shape.json_schema, _parse(text)), error
    if cut_at is not None and not _parse(text):  # The token limit cut off the arguments, or the text before them.
        return FinishResult(text, None, found, _cut_off_message(cut_at), was_cut=True, cause=cause)
    return FinishResult(text, None, found, cause=cause)


def judge_xml(shape: Shape, content: str, root: str, cut_at: int | None = None) -> FinishResult:
    """Validate an answer in XML. `cut_at` is the token limit that cut off the response, or None."""
    # The parser would accept an answer that was cut off, so check for the closing tag first.
    if cut_at is not None and content.rfind(f"</{root}") <= content.rfind(f"<{root}"):
        return FinishResult(content, None, [], _cut_off_message(cut_at), was_cut=True)
    try:
        return FinishResult(content, decode_xml(content, shape, root, trims=True))
    except ParseError as error:
        return FinishResult(content, None, [], str(error), cause=error)
    except ValidationError as error:
        found = find_problems(error, shape.xml_schema, read_xml(content, shape, root, trims=True))
        return FinishResult(content, None, found, cause=error)


def judge_fields(shape: Shape, fields: JsonObject, owner: str) -> BaseModel:
    """Return the output instance for the fields passed to `step.finish`. Raise `ParseError` if they are invalid."""
    unknown = [] if shape.allows_extra else [name for name in fields if name not in shape.accepted_names]
    found = [_unknown_field(name, shape, fields) for name in unknown]
    cause: ValidationError | None = None
    try:
        instance = read_iterators(shape.schema.model_validate(fields, by_alias=True, by_name=True))
    except ValidationError as error:
        found += [
            problem for problem in find_problems(error, shape.call_schema, fields) if problem["path"] not in unknown
        ]
        cause = error
    else:
        if not found:
            return instance
    raise _misfit(found, fields, owner) from cause


def judge_output(shape: Shape, output: Any, owner: str) -> BaseModel:
    """Return the output instance for the value passed to `step.finish`. Raise `ParseError` if it is invalid."""
    if shape.wrapped:
        return judge_fields(shape, {RESULT: output}, owner)
    if isinstance(output, shape.schema):
        of_subclass = type(output).model_fields.keys() - shape.schema.model_fields.keys()
        fields = {name: value for name, value in output if name not in of_subclass}
        judge_fields(shape, fields, owner)  # Pydantic accepts an instance without a check of its values.
        return output
    shown, expected = (
        shorten(safe_repr(output)),
        f"an instance of `{shape.schema.__name__}` (or pass its fields by name)",
    )
    problem = Problem(path="", expected=expected, received=shown, excerpt=shown, text=expected, kind="wrong")
    raise _misfit([problem], output, owner)


def _misfit(found: Sequence[Problem], received: Any, owner: str) -> ParseError:
    return ParseError(
        f"`step.finish` of `{owner}` got an output that does not fit: {_describe(found)}.",
        raw_output=safe_repr(received),
        errors=public_problems(found),
    )


def no_answer(content: str, cut_at: int | None = None) -> FinishResult:
    """Return the result for a response that should have called `__finish__` but did not."""
    if cut_at is not None:
        return FinishResult(content, None, [], _cut_off_message(cut_at), was_cut=True)
    return FinishResult(content, None, [], f"The response did not call `{FINISH}` with an answer.")


def refusal_error(response: ModelResponse, model: Model) -> ModelError:
    """Return the `ModelError` for a response in which the model refused to answer."""
    text = response.refusal or response.content or "(no text)"
    event = "refused to answer" if response.refusal is not None else "stopped at its content filter"
    name = response.fallbacks[-1].to if response.fallbacks else model.name
    return ModelError(f"`{name}` {event}: {text[:500]} Change the input or the prompt, or use another model.")


def xml_request(shape: Shape, root: str) -> str:
    """Return the message text that asks the model to write its answer as XML."""
    return f"{_INSTRUCTION}\n{skeleton(shape.xml_schema, root)}\n\n{_CLOSING}"


@lru_cache(maxsize=256)
def finish_definition(shape: Shape, *, strict: bool = False) -> JsonObject:
    """Return the tool definition of `__finish__`. The parameters of the tool are the output schema."""
    described = {"name": FINISH, "description": "Call this with your final answer. It ends the task."}
    if strict:
        return {**described, "parameters": close_objects(shape.json_schema), "strict": True}
    return {**described, "parameters": shape.json_schema}


@lru_cache(maxsize=256)
def fits_strictly(shape: Shape) -> bool:
    """Return whether the output schema meets the rules of a provider's strict mode without changes."""
    return is_strict(shape.json_schema)


def out_of_retries(result: FinishResult, owner: str, model: str | None, attempts: int) -> ParseError:
    """Return the `ParseError` that ends a run after its last retry failed."""
    remedy = "`parse_retries`, or make `final_output` easier to fill"
    if result.was_cut:
        remedy = "`max_tokens`, or ask for less"
    return ParseError(
        f"`{owner}` got no valid output from `{model}` in {attempts} "
        f"{'attempt' if attempts == 1 else 'attempts'}: {result.user_message} Raise {remedy}.",
        raw_output=result.raw,
        errors=public_problems(result.problems),
        attempts=attempts,
    )


def _cut_off_message(max_tokens: int) -> str:
    return (
        f"The response was cut off at the limit of {max_tokens} tokens before the output was complete. "
        f"A shorter response would fit."
    )


def _describe(found: Sequence[Problem]) -> str:
    return join_problems(
        [describe_problem(problem, f"`{problem['path'] or 'output'}`", problem["excerpt"]) for problem in found]
    )


def _unknown_field(name: str, shape: Shape, fields: JsonObject) -> Problem:
    text, shown = list_names(shape.schema.model_fields), shorten(safe_repr(fields[name]))
    expected = f"no such field ({text})"
    return Problem(path=name, expected=expected, received=shown, excerpt=shown, text=text, kind="unknown")


def _parse(text: str) -> Any:
    try:
        return from_json(text)
    except (ValueError, TypeError):  # The text is not JSON, or contains a lone surrogate.
        return None

"""Conversion of run records and journal entries to JSON data and back, for `Run.to_json` and the stores.

Only this file reads and writes this JSON form. `_machine/saved_run.py` adds the data that is necessary to resume a run.
If the agent class of a run is unknown, the decoded input and output are JSON data instead of instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from acorn import errors
from acorn._formats.blobs import from_single_text, to_saved_data, to_single_text
from acorn._formats.json import (
    describe_error,
    excerpt,
    read_iterators,
    restore_parts,
    save_parts,
    shorten,
    to_json_data,
)
from acorn._formats.redact import Redactor, find_secrets
from acorn._formats.schema.shape import SHAPES, Shape, Shapes
from acorn._history.history import history_of
from acorn.errors import AcornError, ModelError, StoreError
from acorn.journal import CalledTool, Entry, ModelResponded, ResultMessage, RunFailed, RunInterrupted, RunStarted
from acorn.types import (
    Fallback,
    ForkedFrom,
    JsonObject,
    JsonValue,
    Paused,
    Request,
    ToolCall,
    ToolResult,
    Unfinished,
    Usage,
    is_json_object,
)

FORMAT = 1
"""The version number of the JSON form."""

_MOST_CAUSES = 10
"""The largest number of chained causes that are saved with an error."""


# Records as text


def encode_run(run: Any) -> str:
    """Return the JSON text of a run record, including its branches."""
    return to_single_text(_encode_tree(run))


def _encode_tree(run: Any) -> JsonObject:
    entries = tuple(run.journal.entries)  # A copy is necessary, because the run may still append entries.
    return {
        "format": FORMAT,
        "module": next((entry.module for entry in entries if isinstance(entry, RunStarted)), None),
        "run": encode_record(run),
        "history": to_saved_data(run._history.current),
        "journal": [to_saved_data(encode_entry(entry)) for entry in entries],
        "branches": [_encode_tree(branch) for branch in list(run.branches)],
    }


def decode_run(make: Callable[..., Any], text: str, agent: Any) -> Any:
    """Return the run record for a JSON text that `encode_run` returned.

    `make` is the class `Run`. `agent` is the agent class that declares the input and output types. If it is None, input
    and output stay JSON data.
    """
    # A generic alias such as `Extract[Person]` has no shapes of its type arguments, but its instance has.
    module = agent() if get_origin(agent) is not None else agent
    shapes = None if module is None else getattr(module, SHAPES, None)
    if agent is not None and not isinstance(shapes, Shapes):
        raise StoreError(
            f"Cannot read the saved run: the second argument must be a module class, got {excerpt(agent)}."
        )
    try:
        saved = from_single_text(text)
        check_format(saved)
        return decode_record(make, saved, _check_class(shapes, saved["module"]))
    except AcornError:
        raise
    except Exception as error:  # The text may be no JSON, or contain any JSON data, which can raise any error here.
        raise StoreError(
            f"Cannot read the saved run: the text is damaged ({shorten(describe_error(error))}). Use text from "
            f"`run.to_json()`."
        ) from error


def check_format(saved: object) -> None:
    """Raise `StoreError` if the saved data has a format that this version of acorn cannot decode."""
    version = saved.get("format") if is_json_object(saved) else None
    if type(version) is not int:
        raise StoreError("Cannot read the saved run: the text has no `format`. Use text from `run.to_json()`.")
    if version != FORMAT:
        raise StoreError(
            f"Cannot read the saved run: it has format {version}, but this version of acorn reads format {FORMAT}. "
            f"Use the version of acorn that saved the run."
        )


def _check_class(shapes: Shapes | None, module: str | None) -> Shapes | None:
    """Return the input and output schemas, or raise `StoreError` if the run belongs to another agent class.

    Only the class names are compared, because the name of the file may have changed, for example to `__main__`.
    """
    if shapes is None or module is None or shapes.module.partition(":")[2] == module.partition(":")[2]:
        return shapes
    raise StoreError(
        f"Cannot read the saved run as a run of `{shapes.module}`: it is a run of `{module}`. Pass that class, or no "
        f"class to read input and output as JSON data."
    )


# Records


_PLAIN_FIELDS: dict[str, Any] = {
    "id": str,
    "branch": str | None,
    "model": str | None,
    "steps": int,
    "stop_reason": str | None,
    "seconds": int | float,
    "cost": int | float | None,
}
"""Maps the names of the fields of a run that are saved unchanged to their types."""


def encode_record(run: Any) -> JsonObject:
    """Return a run record as JSON data with redacted errors, but without history, journal and branches."""
    output: Any = run.output
    open_parts: JsonObject = {}
    if isinstance(output, Unfinished):
        unfinished: JsonObject = {
            "owner": output._owner,  # pyright: ignore[reportPrivateUsage]  # The public attributes are the model's turn.
            "content": output.content,
            "tool_calls": to_json_data([fields_of(call) for call in output.tool_calls]),
            "tool_results": to_saved_data([encode_result(result) for result in output.tool_results]),
        }
        open_parts, output = {"unfinished": unfinished}, None
    elif isinstance(output, Paused):
        open_parts, output = {"requests": [encode_request(request) for request in output.requests]}, None
    return {
        **{name: getattr(run, name) for name in _PLAIN_FIELDS},
        "input": to_saved_data(run.input),
        "output": None if output is None else to_saved_data(output),
        **open_parts,
        "usage": fields_of(run.usage),
        "started": None if run.started is None else run.started.isoformat(),
        "error": None if run.error is None else _encode_error(run.error, _last_error(run.journal.entries)),
        **({} if run.forked_from is None else {"forked_from": run.forked_from._asdict()}),
    }


def encode_saved_record(run: Any, module: str) -> JsonObject:
    """Return the record of a run that may be resumed, with the format version and the name of the agent class."""
    return {"format": FORMAT, "module": module, "run": {**encode_record(run), "seconds": run.journal.now}}


def decode_record(make: Callable[..., Any], saved: Mapping[str, Any], shapes: Shapes | None) -> Any:
    """Return the run record for saved JSON data, including the branches if the data contains them."""
    fields, entries = saved["run"], decode_entries(saved["journal"])
    run = make(
        input=fields["input"] if shapes is None else decode_instance(shapes.input.schema, fields["input"], "input"),
        output=decode_output(fields, None if shapes is None else shapes.output),
        history=_expect(list, saved["history"]) if "history" in saved else history_of(entries),
        usage=Usage(**fields["usage"]),
        started=None if fields["started"] is None else datetime.fromisoformat(fields["started"]),
        error=None if fields["error"] is None else decode_error(fields["error"]),
        forked_from=decode_fork(fields),
        **{name: _expect(kinds, fields[name]) for name, kinds in _PLAIN_FIELDS.items()},
    )
    if run.error is not None:
        run.error.run = run
    fill_journal(run, entries)
    for branch in saved.get("branches", ()):
        check_format(branch)
        run.branches.append(decode_record(make, branch, _branch_shapes(shapes, branch)))
    return run


def _branch_shapes(shapes: Shapes | None, saved: Mapping[str, Any]) -> Shapes | None:
    """Return the input and output schemas of a branch.

    Return None if the parent class no longer declares the agent class of the branch.
    """
    path = saved["run"]["branch"]
    module = None if shapes is None or path is None else shapes.find_child(path.rpartition("/")[2])
    branch_shapes = None if module is None else getattr(module, SHAPES, None)
    is_same = isinstance(branch_shapes, Shapes) and branch_shapes.module == saved["module"]
    return branch_shapes if is_same else None


def decode_fork(fields: Mapping[str, Any]) -> ForkedFrom | None:
    """Return the run and step that a saved run was forked from, or None if the run is not a fork."""
    origin = fields.get("forked_from")
    return None if origin is None else ForkedFrom(_expect(str | None, origin["run"]), _expect(int, origin["before"]))


def _expect(kinds: Any, value: Any) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise TypeError(f"unexpected value {excerpt(value)}")
    return value


def decode_instance(schema: type[BaseModel], data: object, name: str) -> BaseModel:
    """Return a saved input or output as an instance of `schema`.

    Raise `MisfitError` if the data no longer fits the schema. `name` is "input" or "output", for the error message.
    """
    try:
        try:
            return decode_instance_json(schema, to_json(data, inf_nan_mode="constants"), name)
        except PydanticSerializationError:  # The data contains a lone surrogate.
            return read_iterators(schema.model_validate(data, by_alias=True, by_name=True))
    except ValidationError as error:
        raise _misfit(name, error) from error


def decode_instance_json(schema: type[BaseModel], text: str | bytes, name: str) -> BaseModel:
    """Return an input or output, saved as JSON text, as an instance of `schema`. See `decode_instance`."""
    try:
        return read_iterators(schema.model_validate_json(text, by_alias=True, by_name=True))
    except ValidationError as error:
        raise _misfit(name, error) from error


class MisfitError(StoreError):
    """Raised if a saved run no longer fits its agent class. It may fit another version of the class."""


def _misfit(name: str, error: ValidationError) -> MisfitError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    problem = f"`{where}`: {first['msg']}" if where else first["msg"]
    return MisfitError(
        f"The {name} of the saved run no longer fits its class: {shorten(problem)}. Use the version of the class that "
        f"saved the run."
    )


def decode_output(fields: Mapping[str, Any], shape: Shape | None, *, may_differ: bool = False) -> Any:
    """Return the saved output of a run as an instance of its class.

    Return JSON data if the class is unknown, or if `may_differ` is True and the output does not fit the class.
    """
    if (saved := fields.get("unfinished")) is not None:
        calls = [ToolCall(**call) for call in saved["tool_calls"]]
        return Unfinished(saved["owner"], saved["content"], calls, list(map(decode_result, saved["tool_results"])))
    if fields.get("requests") is not None:
        return Paused(fields["id"], map(decode_request, fields["requests"]))
    data: JsonValue = fields["output"]
    if shape is None or shape.is_empty or data is None:
        return data  # Without a shape, an instance of the module set `final_output`, and its class did not.
    output = shape.restore(data)
    lost = data.keys() - to_json_data(output).keys() if isinstance(data, dict) and isinstance(output, BaseModel) else ()
    if lost and may_differ:
        return data
    if lost:
        raise StoreError(
            f"The output of the saved run has the fields `{'`, `'.join(sorted(lost))}`, which its class does not "
            f"declare. Read the run with an instance that declares these fields, or without a class."
        )
    return output


def encode_request(request: Request) -> JsonObject:
    """Return a request for human input as JSON data."""
    return {**fields_of(request), "asked": request.asked.isoformat()}


def decode_request(saved: Mapping[str, Any]) -> Request:
    fields: dict[str, Any] = dict(saved)
    fields["asked"] = datetime.fromisoformat(fields["asked"])
    fields["choices"] = None if fields["choices"] is None else tuple(fields["choices"])
    return Request(**fields)


def fields_of(record: Any) -> JsonObject:
    """Return a dict with the fields of a dataclass that has slots. The values are not copied."""
    return {name: getattr(record, name) for name in record.__slots__}


def encode_result(result: ToolResult) -> JsonObject:
    """Return a tool result as JSON data. The output is saved as text or as JSON data.

    Some values, such as a date, become a string in JSON. Their saved text includes the quotes, because the model
    receives the quotes too.
    """
    fields = fields_of(result)
    if isinstance(result.output, str):
        return {**fields, "output": str.__str__(result.output)}
    text, parts = save_parts(result.output)
    output = from_json(text)
    fields["output"] = text if isinstance(output, str) else output
    return fields if parts is None else {**fields, "parts": parts}


def decode_result(saved: Mapping[str, Any]) -> ToolResult:
    fields = dict(saved)
    parts = fields.pop("parts", None)
    result = ToolResult(**fields)
    if parts is not None:
        result.output = restore_parts(result.output, parts)
    return result


# Errors


class RecordedError(AcornError):
    """An error of a saved run whose original class acorn does not define. It contains the original message."""

    kind: str
    """The class of the original error, such as `package.file:Class`."""
    fields: dict[str, Any]
    """A dict that maps the names of the original error's public attributes to their values as JSON data."""

    def __init__(self, message: str, *, kind: str = "", fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.fields = dict(fields or {})


def _last_error(entries: Sequence[Entry]) -> str | None:
    """Return the message of the last error in the journal, or None if the journal contains no error.

    Messages in the journal contain no API keys.
    """
    ends = (entry.error for entry in reversed(entries) if isinstance(entry, RunFailed | RunInterrupted))
    return next(ends, None)


def _encode_error(error: BaseException, journal_text: str | None = None, depth: int = 0) -> JsonObject:
    """Return an error as JSON data.

    `journal_text` is the redacted message of the last error in the journal. It is used if it belongs to the same class.
    """
    redactor = Redactor(find_secrets())
    if isinstance(error, RecordedError):
        kind, message, fields = error.kind, str(error), error.fields
    else:
        kind, message = f"{type(error).__module__}:{type(error).__qualname__}", describe_error(error)
        fields = {key: value for key, value in vars(error).items() if _is_public(key)}
    name = kind.rpartition(":")[2].rpartition(".")[2]
    if journal_text is not None and journal_text.partition(":")[0] == name:
        message = journal_text
    # The message of a provider's library may contain a key that acorn does not know.
    cause = None if isinstance(error, ModelError) or depth == _MOST_CAUSES else error.__cause__
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return {
        "class": kind,
        "message": redactor.text(message),
        "fields": redactor.data(to_json_data(fields)),
        "notes": redactor.data(notes),
        "cause": None if cause is None else _encode_error(cause, None, depth + 1),
    }


_ERROR_CLASSES = {
    f"{errors.__name__}:{name}": kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, AcornError)
}
"""Maps the class names in saved errors to the classes in `errors.py`."""


def decode_error(saved: Any) -> AcornError:
    """Return a saved error as an instance of its class, or as a `RecordedError` if acorn lacks the class."""
    kind, message, fields = _expect(str, saved["class"]), _expect(str, saved["message"]), _expect(dict, saved["fields"])
    error_class = _ERROR_CLASSES.get(kind)
    if error_class is None:
        error: AcornError = RecordedError(message, kind=kind, fields=fields)
    else:
        error = error_class(message.partition(": ")[2])
        vars(error).update({key: value for key, value in fields.items() if _is_public(key)})
    for note in saved["notes"]:
        error.add_note(note)
    if saved["cause"] is not None:
        error.__cause__ = decode_error(saved["cause"])
    return error


def _is_public(name: str) -> bool:
    return not name.startswith("_") and name != "run" and not hasattr(BaseException, name)


# Entries


def encode_entry(entry: Entry) -> JsonObject:
    """Return a journal entry as JSON data, with the name of its class under the key `entry`."""
    fields: JsonObject = {"entry": type(entry).__name__, **entry._asdict()}
    if isinstance(entry, RunStarted):
        fields["input"] = to_saved_data(entry.input)
    if "usage" in fields:
        fields["usage"] = fields_of(fields["usage"])
    return fields


def encode_entries(entries: Iterable[Entry]) -> list[JsonObject]:
    """Return journal entries as JSON data, which `decode_entries` converts back."""
    return [encode_entry(entry) for entry in entries]


_ENTRY_CLASSES = {kind.__name__: kind for kind in get_args(Entry)}
_NESTED = {"calls": CalledTool, "results": ResultMessage, "fallbacks": Fallback}
_TUPLES = ("messages", "waits", "added", "choices", "steps")


def decode_entries(saved: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """Return the journal entries for a list of JSON objects from `encode_entries`."""
    return [_decode_entry(entry) for entry in saved]


def _decode_entry(saved: Mapping[str, Any]) -> Entry:
    fields = dict(saved)
    entry_class: Any = _ENTRY_CLASSES[fields.pop("entry")]
    fields.pop("result", None)  # `_machine/saved_run.py` adds this field for the machine.
    for name, inner in _NESTED.items():
        if name in fields:
            fields[name] = tuple([inner(*values) for values in fields[name]])
    for name in _TUPLES:
        if isinstance(fields.get(name), list):
            fields[name] = tuple(fields[name])
    if "usage" in fields:
        fields["usage"] = Usage(**fields["usage"])
    if fields.get("forked_from") is not None:
        fields["forked_from"] = ForkedFrom(*fields["forked_from"])
    entry: Entry = entry_class(**fields)
    return entry


def fill_journal(run: Any, entries: list[Entry]) -> None:
    """Replace the journal entries of a run record. The `RunStarted` entry receives the input of the record."""
    journal = run.journal
    journal.entries[:] = [
        entry._replace(input=run.input) if isinstance(entry, RunStarted) else entry for entry in entries
    ]
    journal.step = max((entry.step for entry in entries if isinstance(entry, ModelResponded)), default=0)
    journal.now = entries[-1].at if entries else 0.0

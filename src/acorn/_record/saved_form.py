"""The record of a run as JSON, and as a record again: `Run.to_json` and `Run.from_json`.

The entries of the journal and the facts of a record are written and read here and nowhere else; `_loop/saved_run.py`
adds to them what a machine needs to go on. Without the class of the run, its input and output are plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from acorn._formats.blobs import from_single_text, to_saved_data, to_single_text
from acorn._formats.content import restore_parts, save_parts
from acorn._formats.json import describe_error, excerpt, shorten, to_json_data
from acorn._formats.redact import find_secrets, redact
from acorn._formats.schema.shape import SHAPES, Shape, Shapes
from acorn._history.history import history_of
from acorn.errors import AcornError, ModelError, StoreError
from acorn.journal import CalledTool, Entry, ModelResponded, ResultMessage, RunFailed, RunInterrupted, RunStarted
from acorn.types import Fallback, ForkedFrom, JsonObject, Paused, Request, ToolCall, ToolResult, Unfinished, Usage

FORMAT = 2
"""The version of what is written here; a reader knows its own and those before it."""

_DEEPEST_CAUSE = 10


# A record as text


def write_run(run: Any) -> str:
    """A record, its branches included, as one JSON text."""
    return to_single_text(lambda: _with_branches(run))


def _with_branches(run: Any) -> JsonObject:
    entries = tuple(run.journal.entries)  # the run may be going on
    return {
        "format": FORMAT,
        "module": module_in(entries),
        "run": written_record(run),
        "history": to_json_data(run._book.messages),
        "journal": [to_json_data(written_entry(entry)) for entry in entries],
        "branches": [_with_branches(branch) for branch in list(run.branches)],
    }


def read_run(make: Callable[..., Any], text: str, agent: Any) -> Any:
    """The record that was written, made by `make`; typed by the class of its module, if that is given."""
    try:
        saved = from_single_text(text)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise StoreError(f"The text is no saved run, since it is no JSON: {describe_error(error)}") from error
    # An alias such as `Extract[Person]` says what its instances give, so one is made.
    known = agent() if get_origin(agent) is not None else agent
    shapes = None if known is None else getattr(known, SHAPES, None)
    if agent is not None and not isinstance(shapes, Shapes):
        raise StoreError(f"A saved run is read by the class of its module, got {excerpt(agent)}.")
    try:
        check_format(saved)
        return read_record(make, saved, _fitting(shapes, saved["module"]))
    except AcornError:
        raise
    except Exception as error:  # the text is somebody's, and may hold anything
        raise StoreError(
            f"The text is no saved run, or a damaged one ({shorten(describe_error(error))}); `run.to_json()` makes "
            f"them."
        ) from error


def check_format(saved: Any) -> None:
    """Refuse what this acorn cannot read."""
    version = saved.get("format") if isinstance(saved, dict) else None
    if type(version) is not int:
        raise StoreError("The text is no saved run: it has no `format`; `run.to_json()` makes them.")
    if version > FORMAT:
        raise StoreError(f"The run was saved in format {version}, and this acorn knows up to {FORMAT}; upgrade acorn.")


def _fitting(shapes: Shapes | None, module: str | None) -> Shapes | None:
    """The class, if the run was one of it; its file may have another name by now, `__main__` for one."""
    if shapes is None or module is None or _class_name(shapes.module) == _class_name(module):
        return shapes
    raise StoreError(
        f"The text is of a run of `{module}`, not of `{shapes.module}`; give that class, or none, which leaves its "
        f"input and output plain data."
    )


def _class_name(module: str) -> str:
    return module.partition(":")[2]


# The facts of a record


def module_in(entries: Any) -> str | None:
    """The class of a run, as its journal tells."""
    return next((entry.module for entry in entries if isinstance(entry, RunStarted)), None)


def written_record(run: Any) -> JsonObject:
    """All of a record but the two books and the branches, as plain data without secrets."""
    output = run.output
    is_unfinished, is_paused = isinstance(output, Unfinished), isinstance(output, Paused)
    return {
        "id": run.id,
        "branch": run.branch,
        "input": to_saved_data(run.input),
        "output": None if is_unfinished or is_paused else to_saved_data(output),
        **({"unfinished": _written_unfinished(output)} if is_unfinished else {}),
        **({"waits_for": [written_request(each) for each in output.requests]} if is_paused else {}),
        "usage": fields_of(run.usage),
        "cost": run.cost,
        "model": run.model,
        "steps": run.steps,
        "stop_reason": run.stop_reason,
        "started": None if run.started is None else run.started.isoformat(),
        "seconds": run.seconds,
        "error": None if run.error is None else _written_error(run.error, _words_in(run.journal.entries)),
        **({} if run.forked_from is None else {"forked_from": run.forked_from._asdict()}),
    }


def read_record(make: Callable[..., Any], saved: Mapping[str, Any], shapes: Shapes | None) -> Any:
    """The record as it was written, and those of its branches if they were written with it."""
    kept, entries = saved["run"], read_entries(saved["journal"])
    given = kept["input"] if shapes is None else read_instance(shapes.input.schema, kept["input"], "input")
    run = make(
        _a(str, kept["id"]),
        given,
        output=read_output(kept, None if shapes is None else shapes.output),
        history=saved["history"] if "history" in saved else history_of(entries),
        usage=Usage(**kept["usage"]),
        cost=_a((int, float, type(None)), kept["cost"]),
        model=_a((str, type(None)), kept["model"]),
        steps=_a(int, kept["steps"]),
        stop_reason=_a((str, type(None)), kept["stop_reason"]),
        started=None if kept["started"] is None else datetime.fromisoformat(kept["started"]),
        seconds=_a((int, float), kept["seconds"]),
        error=None if kept["error"] is None else read_error(kept["error"]),
        branch=_a((str, type(None)), kept.get("branch")),
        forked_from=read_fork(kept),
    )
    if run.error is not None:
        run.error.run = run
    fill_journal(run, entries)
    for below in saved.get("branches", ()):
        check_format(below)
        run.branches.append(read_record(make, below, _shapes_below(shapes, below)))
    return run


def _shapes_below(shapes: Shapes | None, saved: Mapping[str, Any]) -> Shapes | None:
    """What the class above declares under the name of a branch, if that is what the branch was."""
    path = saved["run"]["branch"]
    found = None if shapes is None or path is None else shapes.below(path.rpartition("/")[2])
    below = None if found is None else getattr(found, SHAPES, None)
    return below if isinstance(below, Shapes) and below.module == saved["module"] else None


def read_fork(kept: Mapping[str, Any]) -> ForkedFrom | None:
    """What a run was forked from, as its record says."""
    plain = kept.get("forked_from")
    return None if plain is None else ForkedFrom(_a((str, type(None)), plain["run"]), _a(int, plain["before"]))


def _a(kinds: Any, value: Any) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise TypeError(f"got {excerpt(value)}")
    return value


def read_instance(schema: type[BaseModel], plain: Any, what: str) -> BaseModel:
    """An instance from its plain data as it was saved; its class may have changed since."""
    try:
        try:
            return read_instance_json(schema, to_json(plain, inf_nan_mode="constants"), what)
        except PydanticSerializationError:  # half a surrogate pair in it
            return schema.model_validate(plain, by_alias=True, by_name=True)
    except ValidationError as error:
        raise _misfit(what, error) from error


def read_instance_json(schema: type[BaseModel], text: str | bytes, what: str) -> BaseModel:
    """The same from JSON."""
    try:
        return schema.model_validate_json(text, by_alias=True, by_name=True)
    except ValidationError as error:
        raise _misfit(what, error) from error


class MisfitError(StoreError):
    """A kept run does not fit its class any more; it may fit another version of it."""


def _misfit(what: str, error: ValidationError) -> MisfitError:
    return MisfitError(f"The {what} of the saved run does not fit its class any more: {shorten(str(error))}")


def read_output(kept: Mapping[str, Any], shape: Shape | None, *, may_differ: bool = False) -> Any:
    """The output; plain data where it is of no known class, or may differ from it and does."""
    if kept.get("unfinished") is not None:
        return _read_unfinished(kept["unfinished"])
    if kept.get("waits_for") is not None:
        return Paused(kept["id"], map(read_request, kept["waits_for"]))
    plain = kept["output"]
    if shape is None or shape.is_empty or plain is None:
        return plain  # of a class that gives nothing, an instance gave it
    output = shape.revive(plain)
    lost = (
        plain.keys() - to_json_data(output).keys() if isinstance(plain, dict) and isinstance(output, BaseModel) else ()
    )
    if lost and may_differ:
        return plain
    if lost:
        raise StoreError(
            f"The output of the saved run has `{'`, `'.join(sorted(lost))}`, which its class does not know; read it by "
            f"an instance that gives them, or without the class, as plain data."
        )
    return output


def _written_unfinished(output: Unfinished) -> JsonObject:
    return {
        "owner": output._owner,
        "content": output.content,
        "tool_calls": to_json_data([fields_of(call) for call in output.tool_calls]),
        "tool_results": to_saved_data([written_result(result) for result in output.tool_results]),
    }


def _read_unfinished(plain: Mapping[str, Any]) -> Unfinished:
    calls = [ToolCall(**call) for call in plain["tool_calls"]]
    return Unfinished(plain["owner"], plain["content"], calls, list(map(read_result, plain["tool_results"])))


def written_request(request: Request) -> JsonObject:
    """What people are asked, as plain data."""
    return {**fields_of(request), "asked": request.asked.isoformat()}


def read_request(plain: Mapping[str, Any]) -> Request:
    fields: dict[str, Any] = dict(plain)
    fields["asked"] = datetime.fromisoformat(fields["asked"])
    fields["choices"] = None if fields["choices"] is None else tuple(fields["choices"])
    return Request(**fields)


def fields_of(record: Any) -> JsonObject:
    """The fields of a dataclass with slots; nothing in it is copied."""
    return {name: getattr(record, name) for name in record.__slots__}


def written_result(result: ToolResult) -> JsonObject:
    """A string as it is, anything else as JSON; what JSON writes as a string keeps its quotes, as a model reads it."""
    plain = fields_of(result)
    if isinstance(result.output, str):
        return {**plain, "output": str.__str__(result.output)}
    text, parts = save_parts(result.output)
    output = from_json(text)
    plain["output"] = text if isinstance(output, str) else output
    return plain if parts is None else {**plain, "parts": parts}


def read_result(plain: Mapping[str, Any]) -> ToolResult:
    fields = dict(plain)
    parts = fields.pop("parts", None)
    result = ToolResult(**fields)
    if parts is not None:
        result.output = restore_parts(result.output, parts)
    return result


# Errors


class RecordedError(AcornError):
    """Stands for an error that was none of ours, and says what it was."""

    kind: str
    """Its class, `package.file:Class`."""
    fields: dict[str, Any]
    """What else it held, as plain data."""

    def __init__(self, message: str, *, kind: str = "", fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.fields = dict(fields or {})


def _words_in(entries: Any) -> str | None:
    """What the journal says of the end, without the keys of the model."""
    ends = (entry.error for entry in reversed(entries) if isinstance(entry, RunFailed | RunInterrupted))
    return next(ends, None)


def _written_error(error: BaseException, known: str | None = None, depth: int = 0) -> JsonObject:
    """An error by its class, its words and its public fields; `known` are its words as the journal has them."""
    secrets = find_secrets({})
    kind, name, words = (
        f"{type(error).__module__}:{type(error).__qualname__}",
        type(error).__name__,
        describe_error(error),
    )
    fields = {key: value for key, value in vars(error).items() if _is_public(key)}
    if isinstance(error, RecordedError):
        kind, name, words, fields = (
            error.kind,
            error.kind.rpartition(":")[2].rpartition(".")[2],
            str(error),
            error.fields,
        )
    if known is not None and known.partition(":")[0] == name:
        words = known
    # What a provider's library says may hold a key that nobody here knows of.
    cause = None if isinstance(error, ModelError) or depth == _DEEPEST_CAUSE else error.__cause__
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return {
        "class": kind,
        "words": redact(words, secrets),
        "fields": _redacted(to_json_data(fields), secrets),
        "notes": _redacted(notes, secrets),
        "cause": None if cause is None else _written_error(cause, None, depth + 1),
    }


def _redacted(plain: Any, secrets: set[str]) -> Any:
    if isinstance(plain, str):
        return redact(plain, secrets)
    if isinstance(plain, dict):
        return {key: _redacted(item, secrets) for key, item in plain.items()}
    return [_redacted(item, secrets) for item in plain] if isinstance(plain, list) else plain


def _ours(above: type[AcornError]) -> dict[str, type[AcornError]]:
    """The classes of `errors.py` by their names, from one of them down."""
    found = {f"{above.__module__}:{above.__qualname__}": above}
    for below in above.__subclasses__():
        if below.__module__ == AcornError.__module__:
            found |= _ours(below)
    return found


_OURS = _ours(AcornError)


def read_error(plain: Any) -> AcornError:
    """One of our errors as it was, any other as its words."""
    if isinstance(plain, str):  # as the first format had it
        return RecordedError(plain)
    kind, words, fields = _a(str, plain["class"]), _a(str, plain["words"]), _a(dict, plain["fields"])
    ours = _OURS.get(kind)
    if ours is None:
        error: AcornError = RecordedError(words, kind=kind, fields=fields)
    else:
        error = ours(words.partition(": ")[2])
        vars(error).update({key: value for key, value in fields.items() if _is_public(key)})
    for note in plain["notes"]:
        error.add_note(note)
    if plain["cause"] is not None:
        error.__cause__ = read_error(plain["cause"])
    return error


def _is_public(name: str) -> bool:
    return not name.startswith("_") and name != "run" and not hasattr(BaseException, name)


# Entries


def written_entry(entry: Entry) -> JsonObject:
    """An entry as plain data, with the name of its class."""
    plain: JsonObject = {"entry": type(entry).__name__, **entry._asdict()}
    if isinstance(entry, RunStarted):
        plain["input"] = to_saved_data(entry.input)
    if "usage" in plain:
        plain["usage"] = fields_of(plain["usage"])
    return plain


_KINDS = {kind.__name__: kind for kind in get_args(Entry)}
_NESTED = {"calls": CalledTool, "results": ResultMessage, "fallbacks": Fallback}
_TUPLES = ("messages", "waits", "added", "choices", "steps")


def read_entries(written: Any) -> list[Entry]:
    return [_read_entry(plain) for plain in written]


def _read_entry(plain: Mapping[str, Any]) -> Entry:
    """An entry as it was written."""
    fields = dict(plain)
    kind: Any = _KINDS[fields.pop("entry")]
    fields.pop("result", None)  # which is for the memory of a machine
    for name, inner in _NESTED.items():
        if name in fields:
            fields[name] = tuple([inner(*each) for each in fields[name]])
    for name in _TUPLES:
        if isinstance(fields.get(name), list):
            fields[name] = tuple(fields[name])
    if "usage" in fields:
        fields["usage"] = Usage(**fields["usage"])
    if fields.get("forked_from") is not None:
        fields["forked_from"] = ForkedFrom(*fields["forked_from"])
    entry: Entry = kind(**fields)
    return entry


def fill_journal(run: Any, entries: list[Entry]) -> None:
    """Put what was read into a record's journal, with the record's own input."""
    journal = run.journal
    journal.entries[:] = [each._replace(input=run.input) if isinstance(each, RunStarted) else each for each in entries]
    journal.step = max((entry.step for entry in entries if isinstance(entry, ModelResponded)), default=0)
    journal.now = entries[-1].at if entries else 0.0

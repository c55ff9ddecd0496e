"""The options of `acorn run agent.py`: acorn's own options, and one option for each field of the agent's input.

A field has priority over an option of acorn with the same name. If an agent has a field `model`, `--model` sets that
field, and `--acorn-model` sets acorn's option. `--acorn-model` never sets a field: the option of a field `acorn_model`
is `--acorn_model`, with an underscore. `-h` always prints the help.

`SchemaNode` wraps the JSON Schema of a value, from which the field options are made. `arguments` parses the
command line into options, and `input` builds the input of the run from the options.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any

import typer

from acorn._inside import MEDIA_FORMAT, JsonSchema, Shape, describe_schema, follow_refs
from acorn.types import is_json_object

_MAX_DEPTH = 4
ValuePath = tuple[str | int, ...]
"""The keys and list indexes that lead from the input to one of its values, such as `("address", "city")`."""


# acorn's options

OPTION_HELP = {
    "model": "The model to use, such as `openai/gpt-4o`. It replaces the agent's model and the model's settings.",
    "input": "A file with the input as a JSON object, or `-` for standard input. Options replace its values.",
    "json": "Print one JSON object with the output, usage, cost, steps, stop reason, model and seconds.",
    "save": "Save the run to this file, for `acorn show`, or to standard output if it is `-`.",
    "store": "The store for runs. Default: `ACORN_STORE`, the store of the agent, or `.acorn/runs.db` if it exists.",
    "open": "Open the tool sources and list their tools.",
    "debug": "Print the traceback of an error.",
    "help": "Print this help.",
}
"""A dict that maps the names of acorn's options to their help texts."""
VALUE_NAMES = {"model": "MODEL", "input": "FILE", "save": "FILE", "store": "FILE"}
"""A dict that maps the options with a value to the placeholder for the value in the help."""
RUN_OPTIONS = ("model", "input", "json", "save", "store", "debug", "help")
EXPLAIN_OPTIONS = ("input", "json", "open", "debug", "help")
PREFIX = "acorn-"

# The parameters that several commands have.

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE_OR_MODULE[:CLASS]",
        help="The Python file or module with the agent: `agent.py`, `agent.py:Researcher`.",
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The id of the run, or its first characters.")]
SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN|FILE",
        help="The id of a stored run or its first characters, or a file from `acorn run --save` or `run.to_json()`.",
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", help=OPTION_HELP["model"])]
InputOption = Annotated[str | None, typer.Option("--input", metavar="FILE|-", help=OPTION_HELP["input"])]
JsonOption = Annotated[bool, typer.Option("--json", help=OPTION_HELP["json"])]
SaveOption = Annotated[str | None, typer.Option("--save", metavar="FILE", help=OPTION_HELP["save"])]
StoreOption = Annotated[str | None, typer.Option("--store", metavar="FILE|URL", help=OPTION_HELP["store"])]
StoredRunsOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="FILE|URL",
        help="The store of the runs. Default: `ACORN_STORE`, or `.acorn/runs.db` if it exists.",
    ),
]
AgentOption = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="FILE_OR_MODULE[:CLASS]",
        help="The file or module of the agent, if the class has moved or if the run is in a file.",
    ),
]
ConcurrencyOption = Annotated[int, typer.Option("--concurrency", min=1, help="The number of concurrent runs.")]
DebugOption = Annotated[bool, typer.Option("--debug", help=OPTION_HELP["debug"])]
"""The commands only declare this option. `app` reads it, because an error may occur before the options are parsed."""


@dataclass
class AcornOptions:
    """The values of acorn's own options in one command, such as `--model` and `--store`."""

    model: str | None = None
    input: str | None = None
    json: bool = False
    save: str | None = None
    store: str | None = None
    open: bool = False
    debug: bool = False
    help: bool = False


# Options of the fields


@dataclass(frozen=True)
class Option:
    """A command-line option that sets a field of the input, a value inside a field, or an option of acorn."""

    name: str
    """The name of the option without the leading dashes: `address.city`."""
    path: ValuePath
    node: SchemaNode
    is_required: bool = False
    default: Any = None
    description: str | None = None
    acorn_name: str | None = None
    """The name of the option in `AcornOptions`, or None for an option that sets a value of the input."""

    @property
    def flag(self) -> str:
        return f"--{self.name}"


class Options:
    """All options that set the input of one agent, found by name or listed in order."""

    def __init__(self, shape: Shape, acorn_names: Sequence[str] = RUN_OPTIONS) -> None:
        self.shape = shape
        self.acorn_names = acorn_names
        """The names of acorn's options that the command accepts."""
        self.root = SchemaNode(shape.json_schema, shape.json_schema)
        keys_by_name = {shape.names_by_alias.get(key, key): key for key in self.root.fields}
        self.keys = keys_by_name | {alias: keys_by_name[name] for alias, name in shape.names_by_alias.items()}
        """A dict that maps the names and aliases of the fields to their keys in the JSON Schema."""
        wrapped = self.root.fields[shape.wrapped] if shape.wrapped else None
        self.is_positional = wrapped is not None and not (wrapped.fields and wrapped.kinds == {"object"})
        """Whether the input is a single value that is passed as an argument without an option name."""
        unwrapped = wrapped is None or self.is_positional
        self._fields: tuple[ValuePath, SchemaNode] = (
            ((), self.root) if unwrapped else ((shape.wrapped,), wrapped or self.root)
        )
        """The path and the schema of the object whose fields are the options."""
        self.all = list(_list_options(*self._fields))
        """The options in the order of the fields. The options of nested fields follow the option of their parent."""

    @property
    def positional(self) -> Option | None:
        return self.find_field(self.shape.wrapped) if self.is_positional else None

    def find(self, name: str) -> Option | None:
        """Return the option with a name: an option of a declared field, an option of acorn, or an undeclared field."""
        option = None if prefixed_option(name) else self.find_field(name)
        if option is not None and option.path == (self.shape.wrapped,):
            option = None  # A plain input has no option. `--input` is the option of acorn for a file.
        if option is not None and option.path[0] in self.root.fields:
            return option
        acorn_name = prefixed_option(name) or name
        if acorn_name not in self.acorn_names:
            return option
        node = SchemaNode({"type": "string" if acorn_name in VALUE_NAMES else "boolean"}, {})
        return Option(name, (), node, acorn_name=acorn_name)

    def find_field(self, name: str) -> Option | None:
        """Return the option that sets a value of the input, or None if the input has no such value.

        The name may contain underscores or dashes. It may also name a value inside a dict or a list, as in `tags.0`.
        A field of a nested class with an alias has the alias as its name.
        """
        first, *inner = name.split(".")
        parts = [self.keys.get(first, first), *inner]
        found = _find_value(*self._fields, parts) or _find_value((), self.root, parts)
        if found is None or not (found[0][0] in self.root.fields or first.isidentifier()):
            return None
        path, node = found
        return next((option for option in self.all if option.path == path), None) or Option(name, path, node)

    def is_field(self, option: Option) -> bool:
        """Return True if an option sets a whole field of the input, and False if it sets a value inside a field."""
        return len(option.path) == len(self._fields[0]) + 1

    def display_name(self, option: Option) -> str:
        """Return the words with which error messages name an option."""
        return "the argument" if self.is_positional and self.is_field(option) else f"`{option.flag}`"

    def suggest(self, name: str) -> str:
        """Return the end of the error message for a misspelled option: at most two options with similar names."""
        names = dict.fromkeys([*(option.name for option in self.all), *self.acorn_names])
        similar = get_close_matches(name.strip("-").replace("_", "-"), names, 2)
        flags = " or ".join(f"`--{match}`" for match in similar)
        hint = "Pass the input without the name of an option, or use `--help`." if self.is_positional else ""
        return f"Did you mean {flags}?" if similar else hint or "`--help` lists the options."


def prefixed_option(name: str) -> str | None:
    """Remove the prefix from the name of an option of acorn: return `model` for `acorn-model`.

    Return None if the name has no prefix or if acorn has no such option.
    """
    option = name.removeprefix(PREFIX)
    return option if name.startswith(PREFIX) and option in OPTION_HELP else None


def option_name(field_name: str) -> str:
    """Return a field name with dashes instead of underscores.

    A field such as `acorn_model` keeps its underscore, because `--acorn-model` is an option of acorn.
    """
    name = field_name.replace("_", "-").strip("-") or field_name
    return field_name if prefixed_option(name) else name


def _simple_name(name: str) -> str:
    return re.sub("[-_]", "", name).lower()


def _match_name(name: str, names: Iterable[str]) -> str | None:
    """Return the field name that an option name refers to.

    The last comparison also finds a field with the alias `givenName` by the name `given_name`.
    """
    for form in (str, option_name, _simple_name):
        if (match := next((other for other in names if form(other) == form(name)), None)) is not None:
            return match
    return None


def _find_value(path: ValuePath, node: SchemaNode, parts: Sequence[str]) -> tuple[ValuePath, SchemaNode] | None:
    """Return the path and the schema of the value that the parts of an option name lead to.

    `path` and `node` are the start. Return None if a value on the way has no such field, dict key or list index.
    """
    if not parts:
        return path, node
    first, *inner = parts
    field_name = _match_name(first, node.fields)
    if field_name is not None:
        return _find_value((*path, field_name), node.fields[field_name], inner)
    if "array" in node.kinds and first.isdecimal():
        return _find_value((*path, int(first)), node.item(int(first)), inner)
    extra = node.extra_value
    if extra is None:
        return None
    # Users choose the keys of a dict, so a key may contain dots. If the value of the key has parts itself, a dot
    # separates the key from these parts.
    if extra.kinds and not extra.kinds & {"object", "array"}:
        return (*path, ".".join(parts)), extra
    return _find_value((*path, first), extra, inner)


def _list_options(
    path: ValuePath, node: SchemaNode, prefix: str = "", parents: Sequence[SchemaNode] = ()
) -> Iterator[Option]:
    """Yield the options for all fields below a schema.

    `parents` are the schemas above this one, so that recursive schemas end.
    """
    for name, child in node.fields.items():
        schema, name_of_option = child.schema, prefix + option_name(name)
        description = schema.get("description") or child.class_description
        is_required = name in node.required
        option = Option(name_of_option, (*path, name), child, is_required, schema.get("default"), description)
        yield option
        is_recursive = any(child.members == parent.members for parent in parents)
        if len(parents) < _MAX_DEPTH and not is_recursive:
            yield from _list_options(option.path, child, f"{option.name}.", (*parents, child))


# The JSON Schema of a value


class SchemaNode:
    """The JSON Schema of one value (the input, a field or a list item), with properties that the parser needs."""

    def __init__(self, schema: JsonSchema, root: JsonSchema) -> None:
        self.schema = schema
        self.root = root
        self.members = list(_members(schema, root))
        """The alternative schemas of the value, without references and unions."""
        member_kinds = [_kinds(member) for member in self.members]
        self.kinds = {kind for kinds in member_kinds for kind in kinds} if all(member_kinds) else set[str]()
        """The JSON type names that are allowed, such as `string`. The set is empty if every type is allowed."""

    @property
    def type_text(self) -> str:
        return describe_schema(self.schema, self.root)

    @property
    def class_description(self) -> str | None:
        """The docstring of the class of the value, if the value has only one type apart from null."""
        members = [member for member in self.members if member.get("type") != "null"]
        return members[0].get("description") if len(members) == 1 else None

    @property
    def choices(self) -> list[Any] | None:
        """The list of allowed values, or None if the schema does not enumerate the values."""
        choices: list[Any] = []
        for member in self.members:
            if member.get("type") == "null":
                choices.append(None)
            elif "const" in member or "enum" in member:
                choices += member.get("enum") or [member["const"]]
            else:
                return None
        return choices

    @property
    def media(self) -> list[str]:
        """The list of media types that are allowed: `image`, `audio` and `file`."""
        formats = [str(member.get("format")) for member in self.members]
        return [name.removeprefix(MEDIA_FORMAT) for name in formats if name.startswith(MEDIA_FORMAT)]

    @property
    def is_flag(self) -> bool:
        return "boolean" in self.kinds and self.kinds <= {"boolean", "null"}

    @property
    def accepts_any_text(self) -> bool:
        texts = [member for member in self.members if "string" in _kinds(member)]
        return not self.kinds or any(not member.keys() & {"format", "enum", "const"} for member in texts)

    @property
    def is_list(self) -> bool:
        return "array" in self.kinds and self.kinds <= {"array", "null"}

    @property
    def is_repeatable(self) -> bool:
        """Whether users may repeat the option, because the value may be a list."""
        return "array" in self.kinds

    @cached_property
    def fields(self) -> dict[str, SchemaNode]:
        """A dict that maps field names to their schemas, from all alternatives of a union."""
        schemas_by_name: dict[str, list[JsonSchema]] = {}
        for member in self.members:
            for name, schema in member.get("properties", {}).items():
                schemas_by_name.setdefault(name, []).append(schema)
        return {name: SchemaNode(_union(schemas), self.root) for name, schemas in schemas_by_name.items()}

    @property
    def required(self) -> set[str]:
        return {name for member in self.members for name in member.get("required", [])}

    def item(self, index: int) -> SchemaNode:
        """Return the schema of the list item at an index."""
        for member in self.members:
            if member.get("type") == "array":
                first: Sequence[JsonSchema] = member.get("prefixItems", [])
                return SchemaNode(first[index] if index < len(first) else member.get("items") or {}, self.root)
        return SchemaNode({}, self.root)

    @property
    def extra_value(self) -> SchemaNode | None:
        """The schema of values with undeclared names, or None if the object allows only declared field names."""
        for member in self.members:
            if member.get("type") == "object":
                extra = member.get("additionalProperties", "properties" not in member)
                if extra is not False:
                    return SchemaNode(extra if is_json_object(extra) else {}, self.root)
        return SchemaNode({}, self.root) if not self.kinds else None


def _union(schemas: list[JsonSchema]) -> JsonSchema:
    """Return one schema for a field of several alternatives of a union."""
    first = schemas[0]
    if all(schema == first for schema in schemas):
        return first
    return {"anyOf": schemas, "description": first.get("description")}


def _members(schema: JsonSchema, root: JsonSchema) -> Iterator[JsonSchema]:
    schema = follow_refs(schema, root)
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            for member in schema[union]:
                yield from _members(member, root)
            return
    yield schema


def _kinds(member: JsonSchema) -> list[str]:
    kind: str | list[str] = member.get("type", [])
    return [kind] if isinstance(kind, str) else kind

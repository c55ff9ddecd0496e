"""The options of `acorn run agent.py`: acorn's own options, and one option for each field of the agent's input.

A field has priority over an option of acorn with the same name. If an agent has a field `model`, `--model` sets that
field, and `--acorn-model` sets acorn's option. `--acorn-model` never sets a field: the option of a field `acorn_model`
is `--acorn_model`, with an underscore. `-h` always prints the help.

`SchemaNode` wraps the JSON Schema of a value, from which the field options are made. `arguments` parses the
command line into options, and `input` builds the input of the run from the options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from acorn._inside import MEDIA_FORMAT, RESULT, JsonSchema, Shape, describe_schema, follow_refs
from acorn.types import JsonObject, is_json_list, is_json_object

_MAX_DEPTH = 4
_UNSET: Any = object()
ValuePath = tuple[str | int, ...]
"""The keys and list indexes that lead from the input to one of its values, such as `("address", "city")`."""


# acorn's options

OPTION_HELP = {
    "model": "The model to use, such as `openai/gpt-4o`. It replaces the agent's model and the model's settings.",
    "input": "A file with the input as a JSON object, or `-` for standard input. Options replace its values.",
    "json": "Print one JSON object with the output, usage, cost, steps, stop reason, model and seconds.",
    "save": "Save the run to this file, for `acorn show`, or to standard output if it is `-`.",
    "store": "The store for runs. Default: `ACORN_STORE`, the store of the agent, or `.acorn/runs.db` if it exists.",
    "debug": "Print the traceback of an error.",
    "help": "Print this help.",
}
"""A dict that maps the names of acorn's options to their help texts."""
VALUE_NAMES = {"model": "MODEL", "input": "FILE", "save": "FILE", "store": "FILE"}
"""A dict that maps the options with a value to the placeholder for the value in the help."""
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


@dataclass(frozen=True)
class AcornOptions:
    """The values of acorn's own options in one command, such as `--model` and `--store`."""

    model: str | None = None
    input: str | None = None
    json: bool = False
    save: str | None = None
    store: str | None = None
    debug: bool = False
    help: bool = False


def prefixed_option(name: str) -> str | None:
    """Remove the prefix from the name of an option of acorn: return `model` for `acorn-model`.

    Return None if the name has no prefix or if acorn has no such option.
    """
    option = name.removeprefix(PREFIX)
    return option if name.startswith(PREFIX) and option in OPTION_HELP else None


# Options of the fields


@dataclass(frozen=True)
class Option:
    """A command-line option that sets a field of the input, or a value inside a field."""

    name: str
    """The name of the option without the leading dashes: `address.city`."""
    path: ValuePath
    node: SchemaNode
    is_required: bool = False
    default: Any = _UNSET
    description: str | None = None

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def has_default(self) -> bool:
        return self.default is not _UNSET and self.default is not None


class Options:
    """All options that set the input of one agent, found by name or listed in order."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        schema = add_aliases(shape.xml_schema, shape.json_schema)
        self.root = SchemaNode(schema, schema)
        wrapped = self.root.fields[RESULT] if shape.wrapped else None
        self.is_positional = wrapped is not None and not (wrapped.fields and wrapped.kinds == {"object"})
        """Whether the input is a single value that is passed as an argument without an option name."""
        self.all = list(_list_options(self.root, (), "", (), shape.wrapped and not self.is_positional))
        """The options in the order of the fields. The options of nested fields follow the option of their parent."""
        self._first_parts: dict[str, tuple[ValuePath, SchemaNode]] = {}
        """A dict that maps the possible first parts of option names to the path and the schema of the value."""
        if wrapped is not None and not self.is_positional:
            self._first_parts |= {name: ((RESULT, name), node) for name, node in wrapped.fields.items()}
        for name, node in self.root.fields.items():
            self._first_parts.setdefault(name, ((name,), node))
        for alias, name in shape.names_by_alias.items():
            if name in self.root.fields:
                self._first_parts.setdefault(alias, ((name,), self.root.fields[name]))

    @property
    def positional(self) -> Option | None:
        return self.find(RESULT) if self.is_positional else None

    def find(self, name: str) -> Option | None:
        """Return the option with a name, or None if the input has no such field.

        The name may contain underscores or dashes. It may also name a value inside a dict or a list, as in `tags.0`.
        """
        first, _, remainder = name.partition(".")
        key = _match_name(first, self._first_parts)
        if key is None:
            if not self.shape.allows_extra or not first.isidentifier():
                return None
            return Option(name, (first,), SchemaNode({}, self.root.root)) if not remainder else None
        path, node = self._first_parts[key]
        parts = remainder.split(".") if remainder else []
        names = [_field_option_name(key)]
        while parts:
            step = _descend(node, parts)
            if step is None:
                return None
            used, path_part, part_name, node = step
            path, parts = (*path, path_part), parts[used:]
            names.append(part_name)
        return Option(".".join(names), path, node)

    def is_field(self, option: Option) -> bool:
        """Return True if an option sets a whole field of the input, and False if it sets a value inside a field."""
        return len(option.path) == (2 if self.shape.wrapped and not self.is_positional else 1)

    def display_name(self, option: Option) -> str:
        """Return the words with which error messages name an option."""
        return "the argument" if self.is_positional and self.is_field(option) else f"`{option.flag}`"

    def similar(self, name: str) -> list[str]:
        """Return at most two options with names that are similar to a misspelled name."""
        names = dict.fromkeys([*(option.name for option in self.all), *OPTION_HELP])
        return [f"--{match}" for match in get_close_matches(name.strip("-").replace("_", "-"), names, 2)]


def option_name(field_name: str) -> str:
    """Return a field name with dashes instead of underscores."""
    return field_name.replace("_", "-").strip("-") or field_name


def _field_option_name(field_name: str) -> str:
    """Return the option name of a field of the input.

    A field such as `acorn_model` keeps its underscore, because `--acorn-model` is an option of acorn.
    """
    return field_name if prefixed_option(option_name(field_name)) else option_name(field_name)


def _match_name(name: str, names: Iterable[str]) -> str | None:
    if name in names:
        return name
    return next((other for other in names if option_name(other) == option_name(name)), None)


def _descend(node: SchemaNode, parts: list[str]) -> tuple[int, str | int, str, SchemaNode] | None:
    """Find the inner value that the first parts of an option name refer to.

    Return None if the value has no such field, dict key or list index. Otherwise return the number of used parts, the
    dict key or list index of the inner value, its option name, and its schema.
    """
    fields = node.fields
    field_name = _match_name(parts[0], fields)
    if field_name is None and (alias := _match_name(parts[0], node.aliases)) is not None:
        field_name = node.aliases[alias]
    if field_name is not None:
        return 1, field_name, option_name(field_name), fields[field_name]
    if "array" in node.kinds and parts[0].isdecimal():
        index = int(parts[0])
        return 1, index, parts[0], node.item(index)
    extra = node.extra_value
    if extra is None:
        return None
    # Users choose the keys of a dict, so a key may contain dots. If the value of the key has parts itself, a dot
    # separates the key from these parts.
    if extra.kinds and not extra.kinds & {"object", "array"}:
        key = ".".join(parts)
        return len(parts), key, key, extra
    return 1, parts[0], parts[0], extra


def _list_options(
    node: SchemaNode, path: ValuePath, prefix: str, definitions: tuple[str, ...], hides_first: bool
) -> Iterator[Option]:
    """Yield the options for all fields below a schema.

    `hides_first` omits the outermost field, which only wraps the value. `definitions` are the references of the schemas
    above this one, so that recursive schemas end.
    """
    for name, child in node.fields.items():
        option = Option(
            prefix + option_name(name) if prefix else _field_option_name(name),
            (*path, name),
            child,
            name in node.required,
            child.schema.get("default", _UNSET),
            child.schema.get("description") or _class_schema(child).get("description"),
        )
        is_hidden = hides_first and not path
        if not is_hidden:
            yield option
        is_recursive = child.definition is not None and child.definition in definitions
        if child.fields and len(path) < _MAX_DEPTH and not is_recursive:
            child_prefix = f"{option.name}." if not is_hidden else ""
            yield from _list_options(
                child, option.path, child_prefix, (*definitions, child.definition or ""), hides_first
            )


def _class_schema(node: SchemaNode) -> JsonObject:
    """Return the schema of the only type of a value, apart from null.

    The description in this schema is the docstring of the class.
    """
    members = [member for member in node.members if member.get("type") != "null"]
    return members[0] if len(members) == 1 else {}


# The JSON Schema of a value

_ALIASES = "acorn-aliases"
"""The key of an object schema whose value maps the aliases of the fields to field names."""


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
    def choices(self) -> list[Any] | None:
        """The list of allowed values, or None if the schema does not enumerate the values."""
        choices: list[Any] = []
        for member in self.members:
            if "const" in member:
                choices.append(member["const"])
            elif "enum" in member:
                choices += member["enum"]
            elif member.get("type") == "null":
                choices.append(None)
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
        return "array" in self.kinds and not self.kinds & {"object", "string"}

    @property
    def is_only_list(self) -> bool:
        return "array" in self.kinds and self.kinds <= {"array", "null"}

    @property
    def is_repeatable(self) -> bool:
        """Whether users may repeat the option, because the value may be a list."""
        return "array" in self.kinds

    @property
    def fields(self) -> dict[str, SchemaNode]:
        """A dict that maps field names to their schemas, from all alternatives of a union."""
        schemas_by_name: dict[str, list[JsonSchema]] = {}
        for member in self.members:
            for name, schema in member.get("properties", {}).items():
                schemas = schemas_by_name.setdefault(name, [])
                if schema not in schemas:
                    schemas.append(schema)
        return {name: SchemaNode(_union(schemas), self.root) for name, schemas in schemas_by_name.items()}

    @property
    def aliases(self) -> dict[str, str]:
        """A dict that maps the aliases of the fields to field names."""
        return {alias: name for member in self.members for alias, name in member.get(_ALIASES, {}).items()}

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

    @property
    def definition(self) -> str | None:
        """The `$ref` of the schema, by which a recursive schema is recognized, or None."""
        refs = [member.get("$ref") for member in (self.schema, *self.schema.get("anyOf", []))]
        return next((ref for ref in refs if ref), None)


def add_aliases(schema: JsonSchema, aliased: JsonSchema) -> JsonSchema:
    """Return a copy of a schema in which each object lists the aliases of its fields.

    `aliased` is the schema of the same class with aliases instead of field names.
    """
    with_aliases: JsonSchema = _add_aliases(schema, aliased)
    return with_aliases


def _add_aliases(schema: Any, aliased: Any) -> Any:
    if is_json_list(schema) and is_json_list(aliased) and len(schema) == len(aliased):
        return [_add_aliases(item, other) for item, other in zip(schema, aliased, strict=True)]
    if not is_json_object(schema) or not is_json_object(aliased):
        return schema
    copy = {key: _add_aliases(value, aliased.get(key)) for key, value in schema.items()}
    fields, aliased_fields = schema.get("properties"), aliased.get("properties")
    if is_json_object(fields) and is_json_object(aliased_fields) and len(fields) == len(aliased_fields):
        pairs = list(zip(fields, aliased_fields, strict=True))  # Both dicts have the order of the class.
        copy["properties"] = {name: _add_aliases(fields[name], aliased_fields[alias]) for name, alias in pairs}
        copy[_ALIASES] = {alias: name for name, alias in pairs if alias != name}
    return copy


def _union(schemas: list[JsonSchema]) -> JsonSchema:
    """Return one schema for a field with several alternative schemas, with the texts that all of them share."""
    if len(schemas) == 1:
        return schemas[0]
    common = [key for key in ("description", "default", "title") if all(key in schema for schema in schemas)]
    equal = {key: schemas[0][key] for key in common if all(schema[key] == schemas[0][key] for schema in schemas)}
    return {"anyOf": schemas, **equal}


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

"""Tests of the parser for partial answers, compared with an oracle on every prefix and split of many documents.

The oracle is independent of the parser: it completes the prefix by a documented rule, parses it with the standard
library, and interprets the result by type.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
import re
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, NewType, NotRequired, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    RootModel,
    TypeAdapter,
    ValidationError,
    field_validator,
)
from tests.cases import case
from tests.long_version import IS_LONG
from tests.unit.json_documents import Cat, City, Color, Dog, Item, Loose, Names, Open, Point, Report, Tree, documents
from typing_extensions import TypedDict, is_typeddict

from acorn._formats.partial.expectations import NOT_READY
from acorn._formats.partial.parser import PushParser, expectation_of
from acorn._formats.schema.shape import aliases_of
from acorn.chunk import Partial

P: Any = Partial

DOCUMENTS = documents(6_000 if IS_LONG else 100)

# The oracle, first part: a prefix as data.

PENDING, OPEN = "\0", "\1"
"""A value that nobody may see yet; the first character of a string that is still open."""

PENDING_TEXT = json.dumps(PENDING)

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+|\s+', re.DOTALL)
_HALF_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HALF_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class Pairs(list[tuple[str, Any]]):
    """A JSON object as a list of pairs, including repeated keys."""


class Number(str):
    """The text of a JSON number."""


def closed(text: str) -> Iterator[tuple[str, int]]:
    """Yield pairs of (prefix completed to valid JSON, number of open containers) for all prefixes."""
    yield "", 0
    done, stack, last, rest = "", "", "", ""
    for token in _TOKEN.findall(text):
        is_key = stack.endswith("{") and token.startswith('"') and last in "{,"
        stack = stack[:-1] if token in "}]" else stack + token if token in "{[" else stack
        closers = "".join("}" if sign == "{" else "]" for sign in reversed(stack))
        if token.isspace():
            yield from [((done + rest).rstrip(",") + closers, len(stack))] * len(token)
            continue
        rest = f":{PENDING_TEXT}" if is_key else PENDING_TEXT if token == ":" else ""
        for end in range(1, len(token)):
            yield (done + half(token[:end], is_key)).rstrip(",") + closers, len(stack)
        is_scalar = token[0] not in '"{}[],:'  # No delimiter follows yet.
        yield (done + (PENDING_TEXT if is_scalar else token + rest)).rstrip(",") + closers, len(stack)
        done, last = done + token, token


def half(token: str, is_key: bool) -> str:
    """Return the text that completes an incomplete token."""
    if not token.startswith('"'):
        return PENDING_TEXT
    body = _HALF_PAIR.sub(r"\1", _HALF_ESCAPE.sub(r"\1", token[1:]))
    return "" if is_key else json.dumps(OPEN)[:-1] + body + '"'


def read(text: str) -> Any:
    if not text:
        return PENDING
    return json.loads(
        text, object_pairs_hook=Pairs, parse_int=Number, parse_float=Number, parse_constant=Number, strict=False
    )


# The oracle, second part: data by type. A value is open if `depth` is above 0, and so is its last child.


def seen(kind: Any, node: Any, depth: int = 0) -> Any:
    """Return the dump of the visible part of a value, or HIDDEN if no part is visible."""
    form, inner = form_of(kind)
    if node.__class__ is str:
        if node[:1] == PENDING:
            return NOT_READY
        if node[:1] == OPEN:
            if form == "root":
                return seen(root_of(inner), node)
            grows = form == "any" or inner is str or (form == "union" and (str in inner or Any in inner))
            return whole(node[1:]) if grows else NOT_READY
    if form in ("members", "root") and isinstance(node, list):  # Visible as soon as it is complete and fits.
        whole_value = NOT_READY if depth else judged(kind, node)
        if whole_value is not NOT_READY:
            return whole_value
        return seen(root_of(inner), node, depth) if form == "root" else seen_of_model(inner, node, depth)
    if node.__class__ is Pairs:
        if form == "model":
            return seen_of_model(inner, node, depth)
        if form in ("dict", "any"):
            return seen_of_container(dict, inner, node, depth)
    elif node.__class__ is list and form in ("list", "any"):
        return seen_of_container(list, inner, node, depth)
    if form == "union" and isinstance(node, list):
        return seen_of_union(kind, inner, node, depth)
    return NOT_READY if depth else judged(kind, node)


@cache
def form_of(kind: Any) -> tuple[str, Any]:
    """Return the kind of a type, and the types inside it."""
    kind = getattr(kind, "__supertype__", kind)
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    origin, arguments = get_origin(bare) or bare, get_args(bare)
    if bare in (Any, object, JsonValue):
        return "any", (str, Any)
    if origin in (Union, types.UnionType):
        return "union", tuple(members_of(bare))
    if is_model(bare):
        return "model", bare
    if is_dataclass(bare) or is_typeddict(bare):
        return "members", bare
    if isinstance(bare, type) and issubclass(bare, RootModel):
        return "root", bare
    if origin in (list, Sequence):
        return "list", (str, arguments[0] if arguments else Any)
    if origin in (dict, Mapping):
        return "dict", arguments or (str, Any)
    return "leaf", bare


def seen_of_container(made: type, kinds: tuple[Any, Any], node: Any, depth: int) -> Any:
    key, item = kinds
    found: dict[Any, Any] = {}
    for place, (name, child, below) in enumerate(children(node, depth)):
        at = place if made is list else name if key is str else judged(key, name)
        value = seen(item, child, below)
        is_whole = not below and not is_open(child) and child != PENDING
        if at is not NOT_READY and (is_whole or value is not NOT_READY):
            found[at] = None if value is NOT_READY else value
    return list(found.values()) if made is list else found


def root_of(kind: Any) -> Any:
    return kind.model_fields["root"].annotation


def seen_of_model(model: Any, node: Any, depth: int) -> Any:
    if not isinstance(node, Pairs):
        return NOT_READY
    is_dict = is_typeddict(model)
    found: dict[str, Any] = dict.fromkeys(
        name for name, _ in keys_of(model).values() if not is_dict or name in model.__required_keys__
    )
    extra: dict[str, Any] = {}
    fields = keys_of(model)
    is_open_ended = is_model(model) and model.model_config.get("extra") == "allow"
    for key, child, below in children(node, depth):
        if key in fields:
            name, kind = fields[key]
            value = seen(kind, child, below)
            is_whole = not below and not is_open(child) and child != PENDING
            if is_whole or value is not NOT_READY:
                found[name] = None if value is NOT_READY else value
        elif is_open_ended and not (below or is_open(child) or child == PENDING):
            extra[key] = seen(Any, child)
    return {**found, **extra}


def seen_of_union(kind: Any, members: tuple[Any, ...], node: Any, depth: int) -> Any:
    if isinstance(node, Pairs):
        takers = [member for member in members if takes_objects(member)]
        if len(takers) > 1 and all(form_of(member)[0] in ("model", "members") for member in takers):
            return seen_of_models(kind, takers, node, depth)
    else:
        takers = [member for member in members if takes_arrays(member)]
    if len(takers) == 1:
        return seen(takers[0], node, depth)
    return NOT_READY if depth else judged(kind, node)


def seen_of_models(kind: Any, models: list[Any], node: Pairs, depth: int) -> Any:
    """Return the visible part of a union of classes, as soon as the keys or literals select one class."""
    keys: list[str] = []
    values: list[tuple[str, Any]] = []
    for key, child, below in children(node, depth):
        keys += [key] if any(key in keys_of(model) for model in models) else []
        for told in ([], [(key, child)]):
            if told and (below or is_open(child) or child == PENDING):
                continue
            values += told
            fitting = [
                model
                for model in models
                if all(name in keys_of(model) for name in keys)
                and all(agrees(keys_of(model).get(name, ("", Any))[1], value) for name, value in values)
            ]
            if len(fitting) == 1:
                return seen(fitting[0], node, depth)
    return NOT_READY if depth else judged(kind, node)


def agrees(kind: Any, node: Any) -> bool:
    return get_origin(kind) is not Literal or judged(kind, node) is not NOT_READY


def judged(kind: Any, node: Any) -> Any:
    """Validate a complete value with Pydantic and return it, or return HIDDEN if it is invalid."""
    return judged_text(kind, written(node))


@cache
def judged_text(kind: Any, text: str) -> Any:
    try:
        return spread(adapter(kind).validate_json(text, by_alias=True, by_name=True))
    except ValidationError:
        return NOT_READY


def spread(value: Any) -> Any:
    """Return a dump with None for each field that the document does not contain."""
    if isinstance(value, BaseModel) and not isinstance(value, RootModel):
        return {name: spread(item) if name in value.model_fields_set else None for name, item in value}
    if type(value) is list:
        return [spread(item) for item in value]
    if type(value) is dict:
        return {key: spread(item) for key, item in value.items()}
    return adapter(Any).dump_python(value)


def written(node: Any) -> str:
    if isinstance(node, Pairs):
        return "{" + ",".join(f"{json.dumps(whole(key))}:{written(item)}" for key, item in node) + "}"
    if is_array(node):
        return "[" + ",".join(written(item) for item in node) + "]"
    return str(node) if isinstance(node, Number) else json.dumps(whole(node) if isinstance(node, str) else node)


def children(node: Any, depth: int) -> Iterator[tuple[str, Any, int]]:
    pairs = [(whole(key), item) for key, item in node] if isinstance(node, Pairs) else [("", item) for item in node]
    for place, (key, item) in enumerate(pairs):
        is_last = place == len(pairs) - 1
        yield key, item, max(depth - 1, 0) if is_last and isinstance(item, list) else 0


def whole(text: str) -> str:
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)


def is_open(node: Any) -> bool:
    return isinstance(node, str) and node[:1] == OPEN


def is_array(node: Any) -> bool:
    return isinstance(node, list) and not isinstance(node, Pairs)


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, RootModel)


def takes_objects(kind: Any) -> bool:
    if form_of(kind)[0] == "root":
        return takes_objects(root_of(kind))
    return form_of(kind)[0] in ("model", "members") or kind is Any or get_origin(kind) is dict


def takes_arrays(kind: Any) -> bool:
    if form_of(kind)[0] == "root":
        return takes_arrays(root_of(kind))
    return kind is Any or get_origin(kind) in (list, tuple, set)


def members_of(kind: Any) -> Iterator[Any]:
    for member in get_args(kind):
        member = getattr(member, "__supertype__", member)
        bare = get_args(member)[0] if get_origin(member) is Annotated else member
        if get_origin(bare) in (Union, types.UnionType):
            yield from members_of(bare)
        else:
            yield bare


@cache
def keys_of(model: Any) -> dict[str, tuple[str, Any]]:
    """Return the field's name and type for each key of a model."""
    if not is_model(model):
        return {name: (name, kind) for name, kind in get_type_hints(model).items()}
    model.model_rebuild()
    found: dict[str, tuple[str, Any]] = {}
    for by_alias in (False, True):
        for name, field in model.model_fields.items():
            annotation: Any = field.annotation
            kind = Annotated[(annotation, *field.metadata)] if field.metadata else annotation
            found.update(dict.fromkeys(aliases_of(field) if by_alias else [name], (name, kind)))
    return found


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


# Comparison


class Shown:
    """An expected dump and its JSON text, because texts can be compared faster."""

    def __init__(self, value: Any) -> None:
        self.value = None if value is NOT_READY else value
        self.text = repr(self.value)


def expected_of(model: type[BaseModel], text: str) -> list[Shown]:
    """Return the visible dump of each prefix of a document, from the empty one to the whole."""
    found: list[Shown] = []
    for prefix, depth in closed(text):
        made = Shown(seen(model, read(prefix), depth))
        # Most prefixes have the same dump as the previous prefix.
        found.append(found[-1] if found and found[-1].text == made.text else made)
    return found


def dump(value: Any) -> Any:
    return value.model_dump() if isinstance(value, BaseModel) else None if value is NOT_READY else value


def same(left: Any, right: Any) -> bool:
    """Compare values by type: 1 is not True and not 1.0; NaN is NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(item, right[key]) for key, item in left.items())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) or (left != left and right != right)


def check(found: Any, expected: Shown, model: type[BaseModel], text: str, end: int) -> None:
    shown = dump(found)
    if repr(shown) != expected.text and not same(shown, expected.value):
        pytest.fail(f"{model.__name__} {text[:end]!r}\nshown    {shown!r}\nexpected {expected.text}")


def pieces(text: str, rng: random.Random) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = rng.choice([1, 2, 3, 5, 8, 40])
        yield text[at : at + size]
        at += size


# Every prefix, for any split


def test_parser_samples_include_200_documents_of_which_10_are_long() -> None:
    assert len(DOCUMENTS) >= 200
    assert sum(len(text) > 1000 for _, text in DOCUMENTS) >= 10


def test_document_in_any_split_matches_reference_parser(record_property: Callable[[str, object], None]) -> None:
    record_property("tried", f"{len(DOCUMENTS):,} JSON documents in many splits")
    rng = random.Random(0)
    for number, (model, text) in enumerate(DOCUMENTS):
        expected = expected_of(model, text)
        feed_characters(model, text, expected)
        feed_characters_and_read_at_end(model, text, expected)
        feed_two_parts(model, text, expected)
        for _ in range(3):
            feed_random_parts(model, text, expected, rng)
        if number < 60:
            feed_syntax_errors(model, text, expected)


def feed_characters(model: type[BaseModel], text: str, expected: list[Shown]) -> None:
    parser = PushParser(expectation_of(model))
    kept: list[Any] = []
    for end, sign in enumerate(text, 1):
        parser.feed(sign)
        found = parser.value()
        check(found, expected[end], model, text, end)
        kept.append(found)
    for end, found in enumerate(kept, 1):
        check(found, expected[end], model, text, end)


def feed_characters_and_read_at_end(model: type[BaseModel], text: str, expected: list[Shown]) -> None:
    """Check that a partial value has the state of its creation if it is read only after the last character."""
    parser = PushParser(expectation_of(model))
    kept: list[Any] = []
    for end, sign in enumerate(text, 1):
        parser.feed(sign)
        if not kept or parser.value() is not kept[-1][1]:
            kept.append((end, parser.value()))
    for end, found in reversed(kept):
        check(found, expected[end], model, text, end)


def feed_two_parts(model: type[BaseModel], text: str, expected: list[Shown]) -> None:
    step = 1 if IS_LONG else 3 if len(text) < 300 else 13  # The long ones are repetitive.
    for cut in range(0, len(text), step):
        parser = PushParser(expectation_of(model))
        parser.feed(text[:cut])
        first = parser.value()
        parser.feed(text[cut:])
        check(parser.value(), expected[-1], model, text, len(text))
        check(first, expected[cut], model, text, cut)


def feed_random_parts(model: type[BaseModel], text: str, expected: list[Shown], rng: random.Random) -> None:
    parser, end, kept = PushParser(expectation_of(model)), 0, []
    for piece in pieces(text, rng):
        parser.feed(piece)
        end += len(piece)
        if rng.random() < 0.7:
            kept.append((end, parser.value()))
        if rng.random() < 0.3:
            check(parser.value(), expected[end], model, text, end)
    for end, found in kept:
        check(found, expected[end], model, text, end)


def feed_syntax_errors(model: type[BaseModel], text: str, expected: list[Shown]) -> None:
    """Check that text after a syntax error does not change the value."""
    for cut in range(1, len(text), 7):
        parser = PushParser(expectation_of(model))
        parser.feed(text[:cut])
        if text[cut - 1] in ",:{[" and text[cut] in ' "':  # Between two tokens, where "@" is neither.
            parser.feed("@" + text[cut:])
            check(parser.value(), expected[cut], model, text, cut)


def test_value_of_whole_document_equals_pydantic_result() -> None:
    valid = complete = 0
    for model, text in DOCUMENTS:
        try:
            whole_one = model.model_validate_json(text, by_alias=True, by_name=True)
        except ValidationError:
            continue
        parser = PushParser(expectation_of(model))
        parser.feed(text)
        found = parser.value()
        valid += 1
        assert same(found.model_dump(exclude_unset=True), whole_one.model_dump(exclude_unset=True)), text
        if same(whole_one.model_dump(exclude_unset=True), whole_one.model_dump()):  # No default was needed.
            complete += 1
            assert same(found.model_dump(), whole_one.model_dump()), text
            assert found.model_dump_json() == whole_one.model_dump_json(), text
    assert valid > len(DOCUMENTS) / 3
    assert complete > len(DOCUMENTS) / 5


def test_partial_value_is_same_object_while_fields_are_unchanged() -> None:
    parser = PushParser(expectation_of(Report))
    parser.feed('{"name": "a')
    first = parser.value()
    assert parser.value() is first
    parser.feed("")
    assert parser.value() is first
    for silent in ("\\", "u", "00", "4"):
        parser.feed(silent)
        assert parser.value() is first
    parser.feed("1")
    assert parser.value() is not first
    parser.feed('", "best": {"score')
    second = parser.value()
    for silent in ('"', " ", ":", "\n", "1", ".", "5"):
        parser.feed(silent)
        assert parser.value() is second
    parser.feed(" ")
    assert parser.value().best.score == 1.5


def test_text_of_unknown_field_creates_no_new_partial_value() -> None:
    for opening in ('{"unknown": "', '{"name": "n", "unknown": ["'):
        parser = PushParser(expectation_of(Report))
        parser.feed(opening)
        first = parser.value()
        parser.feed("more and more")
        assert parser.value() is first


# Invalid JSON


def mutated(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    odd = rng.choice(
        ['"', "\\", "{", "}", "[", "]", ",", ":", "x", "-", "\\u12", "\ud83d", "\0", "1e", "nul", "\\ud800"]
    )
    return rng.choice(
        [text[:at] + odd + text[at:], text[:at] + text[at + 1 :], text[:at] + odd + text[at + 1 :], text[at:]]
    )


def test_damaged_document_has_same_value_for_every_split() -> None:
    rng = random.Random(1)
    for model, text in DOCUMENTS:
        for _ in range(4 if len(text) < 300 else 1):
            broken = mutated(mutated(text, rng), rng)
            at_once, by_one, by_some = (PushParser(expectation_of(model)) for _ in range(3))
            at_once.feed(broken)
            for sign in broken:
                by_one.feed(sign)
                by_one.value()
            for piece in pieces(broken, rng):
                by_some.feed(piece)
            found = dump(at_once.value())
            assert same(dump(by_one.value()), found), broken
            assert same(dump(by_some.value()), found), broken


def test_invalid_json_texts_do_not_raise_in_partial_parser() -> None:
    for garbage in [
        "",
        " ",
        "no json",
        "```json\n{}",
        "{'city_name': 'x'}",
        "{city_name: 1}",
        '{"city_name" "x"}',
        '{"city_name": x}',
        '{"city_name": tru}',
        '{"city_name": truefalse}',
        '{"population": 01}',
        '{"population": 1.}',
        '{"population": +1}',
        '{"population": --1}',
        '{"population": 1 2}',
        '{"population": ' + "9" * 5000 + "}",
        '{"population": ' + "9" * 50_000,
        '{"population": n' + "o" * 50_000,
        '{"city_name": "\\x"}',
        '{"city_name": "\\u12g4"}',
        '{"city_name": "\\u-123"}',
        '{"city_name": "\\u+123"}',
        '{"city_name": "\\u 123"}',
        '{"city_name": "\\u1_23"}',
        '{"city_name": "\ud83d", "explanation": "\ude00"}',
        '{"population": "\ud83d", "\ud83d": ["\ud83d"]}',
        "]",
        "}",
        '{"city_name": ]',
        '{"city_name": "a"]',
        "[}",
        '{"a": [}',
        "}{",
        "{,}",
        "{}{}",
        '{"city_name": "a"} {"city_name": "b"}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"city_name": ' + "[" * 1000 + "]" * 1000 + "}",
        "\0\1\2",
    ]:
        with case(garbage):
            for model in (City, Report, Loose, Tree):
                parser = PushParser(expectation_of(model))
                for at in range(0, len(garbage), 9):
                    parser.feed(garbage[at : at + 9])
                    parser.value()
                dump(parser.value())


def test_nesting_limit_of_partial_parser_equals_limit_of_pydantic() -> None:
    class Deep(BaseModel):
        anything: Any

    for depth in (199, 200, 201, 5000):
        text = '{"anything": ' + "[" * depth + "]" * depth + "}"
        parser = PushParser(expectation_of(Deep))
        parser.feed(text)
        found, levels = parser.value().anything, 0
        while found is not None:
            found, levels = (found[0] if found else None), levels + 1
        assert levels == min(depth, 200)
        if depth <= 200:
            Deep.model_validate_json(text)
        else:
            with pytest.raises(ValidationError):
                Deep.model_validate_json(text)


def test_deeply_nested_text_is_readable_while_it_grows() -> None:
    parser = PushParser(expectation_of(Tree))
    parser.feed('{"children": [' * 99 + '{"value": "' + "x" * 5000)
    found = parser.value()
    for _ in range(99):
        found = found.children[0]
    assert found.value == "x" * 5000
    parser = PushParser(expectation_of(Loose))
    parser.feed('{"anything": ' + "[" * 199 + '"' + "x" * 5000)
    found = parser.value().anything
    for _ in range(199):
        found = found[0]
    assert found == "x" * 5000


def test_unicode_escapes_are_parsed_like_standard_library() -> None:
    for text, expected in [
        (r'"\ud83d\udfff!', "\U0001f7ff!"),  # The last of the low surrogates.
        (r'"\ud83d\udc00!', "\U0001f400!"),
        (r'"\ud83d\ue000!', "\ufffd\ue000!"),
        (r'"\udfff!', "\ufffd!"),
        (r'"a\u00g1b"', "a"),
        (r'"a\u+123b"', "a"),
        (r'"a\u 123b"', "a"),
    ]:
        with case(text):
            for size in (1, 2, len(text)):
                parser = PushParser(expectation_of(str))
                for at in range(0, len(text), size):
                    parser.feed(text[at : at + size])
                assert parser.value() == expected


def test_json_container_is_closed_only_by_matching_bracket() -> None:
    for text, expected in [
        ('{"a": {"b": 1], "c": 2}', {"a": {"b": 1}}),
        ('{"a": ], "c": 2}', {}),
        ('{"a": {"b": ], "c": 2}', {"a": {}}),
        ('{"a": [1}, "c": 2}', {"a": [1]}),
        ('{"a": [1, }, "c": 2}', {"a": [1]}),
        ('{], "c": 2}', {}),
    ]:
        with case(text):
            parser = PushParser(expectation_of(Any))
            parser.feed(text)
            assert parser.value() == expected


# Types


def shown(kind: Any, text: str) -> Any:
    parser = PushParser(expectation_of(kind))
    parser.feed(text)
    found = parser.value()
    return None if found is NOT_READY else found


T = typing.TypeVar("T")


@dataclass
class Box(typing.Generic[T]):
    item: T
    label: str = Field(default="", alias="name")
    made: bool = dataclasses.field(default=False, init=False)


class Shelf(TypedDict):
    boxes: list[Box[Point]]
    note: NotRequired[str]


class Word(RootModel[str]):
    pass


class Forest(RootModel[dict[str, "Forest | None"]]):
    pass


class Store(BaseModel):
    shelf: Shelf
    word: Word | None = None
    point: Point | Small | None = None


class Small(BaseModel):
    z: int


LONG = "x" * 5000


def test_dataclass_typed_dict_and_root_model_outputs_have_partial_values() -> None:
    for kind, text, expected in [
        (Box[int], '{"item": 5, "name": "a', {"item": 5, "label": "a"}),
        (Box[str], '{"item": "a', {"item": "a", "label": None}),
        (Box[Point], '{"item": {"x": 1,', {"item": {"x": 1, "y": None}, "label": None}),
        (Shelf, "{", {"boxes": None}),
        (Shelf, '{"boxes": [{"item": {"x": 1}, ', {"boxes": [{"item": {"x": 1, "y": 0.5}, "label": None}]}),
        (Shelf, '{"boxes": [], "note": "a', {"boxes": [], "note": "a"}),
        (Shelf, '{"boxes": [], "note": "' + LONG, {"boxes": [], "note": LONG}),
        (Shelf, '{"boxes": [], "note": 5, "other": {"a": 1}', {"boxes": [], "note": None}),
        (Shelf, '{"note": "a"}', {"boxes": None, "note": "a"}),
        (Word, '"ab', "ab"),
        (Word, '"' + LONG, LONG),
        (Names, '["a", "b', ["a", "b"]),
        (Names, '["a", 5]', ["a", None]),
        (Forest, '{"oak": {"twig": {', {"oak": {"twig": {}}}),
        (Store, '{"shelf": {"note": "a', {"shelf": {"boxes": None, "note": "a"}, "word": None, "point": None}),
        (Store, '{"word": "ab', {"shelf": None, "word": "ab", "point": None}),
        (Store, '{"word": "' + LONG, {"shelf": None, "word": LONG, "point": None}),
        (Store, '{"point": {"y": 2,', {"shelf": None, "word": None, "point": {"x": None, "y": 2.0}}),
    ]:
        with case(kind), warnings.catch_warnings():
            warnings.simplefilter("error")
            assert adapter(Any).dump_python(shown(kind, text)) == expected


def test_complete_nested_values_have_declared_types() -> None:
    assert shown(Box[Point], '{"item": {"x": 1}}') == Box(Point(1), "")
    assert shown(Names, '["a"]') == Names(["a"])
    assert shown(Word, '"a"') == Word("a")
    found = shown(Store, '{"shelf": {"boxes": [{"item": {"x": 1}}]}, "word": "a", "point": {"x": 2}}')
    assert found.shelf == {"boxes": [Box(Point(1), "")]}
    assert (found.word, found.point) == (Word("a"), Point(2))


def test_earlier_partial_values_of_typed_dict_do_not_change() -> None:
    parser = PushParser(expectation_of(Shelf))
    pieces = ['{"boxes": [', '{"item": {"x": 1}}', '], "note": "a', 'b"', "}"]
    found: list[Any] = []
    for piece in pieces:
        parser.feed(piece)
        found.append(parser.value())
    assert [adapter(Any).dump_python(each) for each in found] == [
        {"boxes": []},
        {"boxes": [{"item": {"x": 1, "y": 0.5}, "label": "", "made": False}]},
        {"boxes": [{"item": {"x": 1, "y": 0.5}, "label": "", "made": False}], "note": "a"},
        {"boxes": [{"item": {"x": 1, "y": 0.5}, "label": "", "made": False}], "note": "ab"},
        {"boxes": [{"item": {"x": 1, "y": 0.5}, "label": "", "made": False}], "note": "ab"},
    ]


def test_dataclass_and_root_model_have_partial_class_with_fields() -> None:
    part = P[Box[int]]
    assert issubclass(part, BaseModel)
    assert list(part.model_fields) == ["item", "label"]
    assert P[Names](["a"]).root == ["a"]
    assert pickle.loads(pickle.dumps(part(item=1))) == part(item=1)


@dataclass
class Lost:
    name: Missing  # type: ignore[name-defined]  # noqa: F821


def test_dataclass_with_unresolvable_type_hint_has_partial_value_none() -> None:
    assert shown(Lost, '{"name": "a') is None


def test_output_type_that_is_not_model_is_parsed_partially() -> None:
    for kind, text, expected in [
        (list[int], "[1, 2", [1]),
        (list[int], "[1, 2,", [1, 2]),
        (list[int], "[1, 2]", [1, 2]),
        (str, '"ab', "ab"),
        (dict[str, list[str]], '{"a": ["b', {"a": ["b"]}),
        (Any, '{"a": [1, "b', {"a": [1, "b"]}),
        (str | None, '"ab', "ab"),
        (int, "12", None),
        (int, "12 ", 12),
        (bool, "true", None),
        (Point, '{"x": 1', P[Point](x=None)),
        (Point, '{"x": 1, "y"', P[Point](x=1)),
        (Point, '{"x": 1}', Point(1)),
        (NewType("Name", str), '"ab', "ab"),
        (typing.List, '["a', ["a"]),  # noqa: UP006
        (Sequence[str], '["a', ["a"]),
        (Mapping[str, str], '{"a": "b', {"a": "b"}),
        (set[str], '["a", "b"', None),
        (object, '["a', ["a"]),
    ]:
        with case(kind):
            assert shown(kind, text) == expected


def test_field_whose_class_is_defined_later_is_parsed() -> None:
    class Early(BaseModel):
        later: Later | None = None
        words: list[Later] = []

    class Later(BaseModel):
        name: str

    Early.model_rebuild()
    found = shown(Early, '{"later": {"name": "a"}, "words": [{"name": "b')
    assert found.model_dump() == {"later": {"name": "a"}, "words": [{"name": "b"}]}


def test_model_config_is_applied_to_complete_partial_fields() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(str_strip_whitespace=True, use_enum_values=True, strict=True)

        name: str
        maybe: str | None
        color: Color
        count: int
        items: list[Item]

    found = shown(Strict, '{"name": " a ", "maybe": " b ", "color": "red", "count": "5", "items": [{"title": " c "}]}')
    assert found.model_dump() == {
        "name": "a",
        "maybe": "b",
        "color": "red",
        "count": None,
        "items": [{"title": " c ", "score": None, "tags": None}],
    }
    assert shown(Strict, '{"name": " a ').name == " a "


def test_field_whose_annotated_validator_raises_has_partial_value_none() -> None:
    def fail(value: Any) -> Any:
        raise KeyError("odd")

    class Odd(BaseModel):
        name: Annotated[str, Field(max_length=100), AfterValidator(fail)]
        count: int

    assert shown(Odd, '{"name": "a", "count": 1}').model_dump() == {"name": None, "count": 1}


def test_field_validators_are_not_applied_to_partial_values() -> None:
    class Checked(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def refuse(cls, value: str) -> str:
            raise ValueError("never")

    assert shown(Checked, '{"name": "a"}').name == "a"


def test_discriminator_selects_partial_class_of_union_member() -> None:
    class Holder(BaseModel):
        pet: Annotated[Cat | Dog, Field(discriminator="type")] | None
        pets: list[Annotated[Cat | Dog, Field(discriminator="type")]]

    found = shown(Holder, '{"pet": {"name": "Tom", "type": "cat"}, "pets": [{"type": "dog", "name": "Re')
    assert type(found.pet).__name__ == "PartialCat"
    assert found.model_dump() == {
        "pet": {"type": "cat", "name": "Tom", "lives": None},
        "pets": [{"type": "dog", "name": "Re", "tricks": None}],
    }


def test_union_without_discriminator_yields_partial_models() -> None:
    class Holder(BaseModel):
        one: Item | dict[str, int]
        many: list[Item] | list[str]
        by_number: dict[int, Item]

    found = shown(Holder, '{"one": {"title": "a"}, "many": [{"title": "b"}], "by_number": {"1": {"title": "c"}}}')
    assert {type(item).__name__ for item in (found.one, found.many[0], found.by_number[1])} == {"PartialItem"}
    assert found.one.tags is None


def test_deeply_nested_unions_without_discriminator_are_parsed() -> None:
    class Leaf(BaseModel):
        name: str
        below: Node | Leaf | None = None

    class Node(BaseModel):
        name: str
        below: Node | Leaf | None = None
        kind: Literal["node"] = "node"

    Leaf.model_rebuild()
    text = '{"name": "a", "below": ' * 8 + "null" + "}" * 8
    parser = PushParser(expectation_of(Node))
    parser.feed(text)
    assert parser.value().name == "a"


def test_extra_keys_of_open_model_are_included_when_complete() -> None:
    parser = PushParser(expectation_of(Open))
    parser.feed('{"name": "n", "more": "te')
    first = parser.value()
    assert first.model_dump() == {"name": "n"}
    parser.feed('xt", "and": [1')
    assert parser.value().model_dump() == {"name": "n", "more": "text"}
    assert parser.value().more == "text"
    assert first.model_dump() == {"name": "n"}


# Complete fields


def test_completed_fields_are_listed_in_order_of_completion() -> None:
    parser = PushParser(expectation_of(City))
    told: list[tuple[str, ...]] = []
    for sign in '{"population": 12, "city_name": "Oslo", "unknown": 1, "explanation": "x", "city_name": "B"}':
        parser.feed(sign)
        if not told or told[-1] != parser.completed():
            told.append(parser.completed())
    assert told == [
        (),
        ("population",),
        ("population", "city_name"),
        ("population", "city_name", "explanation"),
        ("population", "explanation"),
        ("population", "explanation", "city_name"),
    ]


def test_completed_fields_are_listed_only_for_outermost_model() -> None:
    parser = PushParser(expectation_of(Report))
    parser.feed('{"best": {"title": "a", "score": 1, ')
    assert parser.completed() == ()
    parser.feed('"tags": []}, "name": "b"}')
    assert parser.completed() == ("best", "name")

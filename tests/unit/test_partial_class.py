"""Tests of `Partial[T]`: a Pydantic class whose fields may be None and whose long fields are built at first access."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Generic, Literal, Optional, Self, TypeVar, get_args, get_origin

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation
from tests.cases import case
from tests.unit.json_documents import Aliased, Cat, City, Dog, Item, Open, Page, Ping, Pong, Report, Tree, Zoo

from acorn._formats.partial.classes import PartialModel
from acorn._formats.partial.parser import PushParser, expectation_of
from acorn._formats.schema.shape import shape_of
from acorn.chunk import Partial

T = TypeVar("T")
P: Any = Partial
"""The same, unseen by a type checker: to that it is `T`, as `tests/house` shows."""
LONG = "lorem ipsum " * 100
MANY = list(range(100))


class Essay(BaseModel):
    """An essay."""

    before: int
    text: str
    after: list[int] = []


class Color(Enum):
    RED = "red"


def partial(kind: Any, *pieces: str) -> Any:
    parser = PushParser(expectation_of(kind))
    for piece in pieces:
        parser.feed(piece)
    return parser.value()


def essay(text: str = LONG) -> Any:
    """Return a snapshot whose `text` is incomplete."""
    return partial(Essay, '{"after": [1, 2], "before": 5, "text": "', text)


def kinds_of(cls: Any) -> dict[str, Any]:
    return {name: field.annotation for name, field in cls.model_fields.items()}


# The class


def test_partial_class_has_all_fields_optional_with_default_none() -> None:
    class MyOutput(BaseModel):
        name: str
        count: int
        summary: str

    class PartialMyOutput(BaseModel):
        name: str | None
        count: int | None
        summary: str | None

    made: Any = P[MyOutput]
    assert made.__name__ == "PartialMyOutput"
    assert kinds_of(made) == kinds_of(PartialMyOutput)
    assert made().model_dump() == {"name": None, "count": None, "summary": None}
    assert made(name="a", count="5").model_dump() == {"name": "a", "count": 5, "summary": None}
    with pytest.raises(ValidationError):
        made(count="many")


def test_partial_class_is_pydantic_class_with_json_schema() -> None:
    made: Any = P[Essay]
    assert issubclass(made, BaseModel)
    assert not issubclass(made, Essay)
    assert made.__doc__ == "An essay."
    assert made.__module__ == Essay.__module__
    assert list(made.model_fields) == ["before", "text", "after"]
    assert not any(field.is_required() for field in made.model_fields.values())
    assert made.model_json_schema()["properties"].keys() == {"before", "text", "after"}
    assert TypeAdapter(made).validate_json('{"text": "a"}') == made(text="a")


def test_partial_class_of_one_model_is_created_once() -> None:
    assert P[City] is P[City]
    assert P[Report] is P[Report]
    assert type(partial(City, "{")) is P[City]
    assert P[City] is not P[Essay]
    first, second = (create_model("Twin", name=(str, ...)) for _ in range(2))
    assert P[first] is not P[second]


def test_partial_class_is_created_once_in_many_threads() -> None:
    kinds = [create_model(f"Threaded{n}", name=(str, ...), next=(Tree | None, None)) for n in range(20)]
    start = threading.Barrier(8)
    found: list[list[Any]] = []

    def make() -> None:
        start.wait()
        found.append([P[kind] for kind in kinds])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(classes == found[0] for classes in found)


def test_models_nested_in_lists_dicts_and_unions_become_partial_classes() -> None:
    part: Any = P[Item]
    assert kinds_of(P[Report]) == {
        "name": str | None,
        "items": list[part] | None,
        "best": part | None,
        "by_name": dict[str, part] | None,
    }
    zoo = kinds_of(P[Zoo])
    pet: Any = P[Cat] | P[Dog]
    assert zoo["one"] == pet | None
    assert zoo["maybe_tagged"] == pet | None
    assert zoo["by_name"] == dict[str, pet] | None


def test_partial_class_of_recursive_model_refers_to_itself() -> None:
    part: Any = P[Tree]
    assert kinds_of(part) == {"value": str | None, "children": list[part] | None, "parent": part | None}
    found = part.model_validate({"children": [{"parent": {"value": "a"}}]})
    assert type(found.children[0].parent) is part


def test_mutually_recursive_models_become_partial_classes() -> None:
    ping, pong = P[Ping], P[Pong]
    assert kinds_of(ping)["pong"] == pong | None
    assert kinds_of(pong)["pings"] == list[ping] | None  # type: ignore[valid-type]


def test_model_field_annotated_with_self_becomes_partial_class() -> None:
    class Chain(BaseModel):
        name: str
        next: Self | None = None
        others: list[Self] = []

    found = partial(Chain, '{"name": "a", "others": [{"name": "b"}], "next": {"name": "c", "next": {"name": "d')
    assert found.model_dump()["next"] == {
        "name": "c",
        "next": {"name": "d", "next": None, "others": None},
        "others": None,
    }
    assert type(found.others[0]) is P[Chain]


class Linked(BaseModel, Generic[T]):
    value: T
    next: Optional[Linked[T]] = None  # noqa: UP045


def test_generic_model_has_one_partial_class_per_type_argument() -> None:
    part: Any = P[Item]
    assert kinds_of(P[Page[Item]]) == {"items": list[part] | None, "next": part | None}
    assert kinds_of(P[Page[str]]) == {"items": list[str] | None, "next": str | None}
    assert P[Page[Item]] is P[Page[Item]]
    assert P[Page[Item]] is not P[Page[str]]
    for kind, text in ((int, "5"), (Literal["a", "b"], '"a"'), (Page[str], '{"items": ["a"]}')):
        found = partial(Linked[kind], f'{{"value": {text}, "next": {{"value": {text}}}}}')  # type: ignore[valid-type]
        assert type(found.next) is type(found)
        assert found.next.model_dump()["value"] == found.model_dump()["value"] is not None


class Before(BaseModel):
    after: Optional[After] = None  # noqa: UP045


class After(BaseModel):
    name: str


def test_field_type_defined_later_in_module_becomes_partial_class() -> None:
    assert kinds_of(P[Before])["after"] == P[After] | None


def test_field_type_defined_later_in_function_becomes_partial_class() -> None:
    class Early(BaseModel):
        later: Later2 | None = None

    class Later2(BaseModel):
        name: str

    Early.model_rebuild()
    assert kinds_of(P[Early])["later"] == P[Later2] | None


def test_model_with_undefined_type_raises_and_leaves_no_partial_class() -> None:
    class Inner(BaseModel):
        name: str
        next: Self | None = None

    class Broken(BaseModel):
        inner: Inner
        never: "list[Never1]"  # type: ignore[name-defined] # noqa: F821, UP037

    with pytest.raises(PydanticUndefinedAnnotation):
        P[Broken]
    assert partial(Inner, '{"next": {"name": "a').next == P[Inner](name="a")


def test_partial_of_type_that_is_not_model_is_that_type() -> None:
    part: Any = P[Item]
    for kind in (str, int, tuple[Item, ...], set[int], Literal["a"], Any, None, Annotated[int, 5]):
        assert P[kind] == kind
    assert P[list[Item]] == list[part]
    assert P[dict[str, list[Item]]] == dict[str, list[part]]
    assert P[Item | None] == part | None
    assert P[Annotated[Item, "described"]] is part


def test_output_declared_as_field_list_has_partial_class() -> None:
    shape = shape_of(["name", ("count", int), ("tags", list[str], [])], "Agent", "final_output")
    assert kinds_of(P[shape.schema]) == {"name": str | None, "count": int | None, "tags": list[str] | None}
    assert partial(shape.schema, '{"count": 5, "name": "a').model_dump() == {"name": "a", "count": 5, "tags": None}


def test_partial_class_serializes_fields_like_original_class() -> None:
    class Written(BaseModel):
        model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", use_enum_values=True)

        plain: int = Field(alias="Plain", description="A number.")
        secret: str = Field(repr=False)
        inner: str = Field(exclude=True)
        raw: bytes
        color: Color

    text = '{"Plain": 5, "secret": "s", "inner": "i", "raw": "AAE=", "color": "red"}'
    found, whole = partial(Written, text), Written.model_validate_json(text)
    assert found.plain == 5
    assert found.model_dump() == whole.model_dump()
    assert found.model_dump(by_alias=True) == whole.model_dump(by_alias=True)
    assert found.model_dump_json() == whole.model_dump_json()
    assert repr(found) == repr(whole).replace("Written", "PartialWritten")
    assert P[Written].model_fields["plain"].description == "A number."


def test_partial_class_of_model_serialized_by_alias_is_serialized_by_alias() -> None:
    class Written(BaseModel):
        model_config = ConfigDict(serialize_by_alias=True)

        plain: int = Field(alias="Plain")

    assert partial(Written, '{"Plain": 5}').model_dump() == {"Plain": 5}


def test_partial_class_accepts_field_names_used_by_pydantic_methods() -> None:
    names = ["title", "self", "model", "type", "copy", "json", "schema", "dict", "fields", "validate", "cls", "data"]
    names += ["model_name", "construct", "items", "keys", "values", "model_dump_text", "name", "id", "result", "count"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pydantic's warning about the user's class.
        fields: dict[str, Any] = dict.fromkeys(names, (str, ...))
        Odd = create_model("Odd", __config__=ConfigDict(protected_namespaces=()), **fields)
    part: Any = P[Odd]
    assert list(part.model_fields) == names
    for name in names:
        for text in ("short", LONG):
            found = partial(Odd, f'{{"{names[0]}": "t", "{name}": "{text}')
            assert getattr(found, name) == text
            assert found.model_dump() == {**dict.fromkeys(names), names[0]: "t", name: text}
            assert part(**{name: text}).model_dump()[name] == text


# The instance


def test_partial_instance_is_pydantic_model_and_truthy() -> None:
    found = partial(City, "{")
    assert isinstance(found, BaseModel)
    assert isinstance(found, P[City])
    assert not isinstance(found, City)
    assert bool(found)
    assert found.city_name is None
    with pytest.raises(AttributeError, match="city"):
        _ = found.city


def test_parsed_partial_equals_partial_instance_with_same_values() -> None:
    part: Any = P[Essay]
    for text in ("short", LONG):
        assert essay(text) == part(before=5, text=text, after=[1, 2])
        assert part(before=5, text=text, after=[1, 2]) == essay(text)
        assert essay(text) == essay(text)
        assert essay(text) != essay(text + "x")
        assert essay(text) != Essay(before=5, text=text, after=[1, 2])
        assert essay(text) != {"before": 5, "text": text, "after": [1, 2]}


WAYS_OF_READING: list[Callable[[Any], Any]] = [
    lambda found: found.model_dump(),
    lambda found: found.model_dump(mode="json"),
    lambda found: dict(found),
    lambda found: dict(vars(found)),
    lambda found: found.__dict__,
    lambda found: copy.copy(found).model_dump(),
    lambda found: copy.deepcopy(found).model_dump(),
    lambda found: found.model_copy().model_dump(),
    lambda found: found.model_copy(deep=True).model_dump(),
    lambda found: pickle.loads(pickle.dumps(found)).model_dump(),
    lambda found: TypeAdapter(Any).dump_python(found),
    lambda found: TypeAdapter(dict[str, Any]).validate_json(found.model_dump_json()),
    lambda found: TypeAdapter(P[Essay]).dump_python(found),
    lambda found: {name: getattr(found, name) for name in type(found).model_fields},
    lambda found: P[Essay].model_validate(found).model_dump(),
]


def test_growing_field_of_partial_is_included_in_each_way_of_reading() -> None:
    for look in WAYS_OF_READING:
        with case(look):
            shown = look(essay())
            assert shown == {"before": 5, "text": LONG, "after": [1, 2]}
            assert list(shown) == ["before", "text", "after"]


def test_model_dump_of_partial_with_include_and_exclude_selects_fields() -> None:
    found = partial(Essay, '{"text": "', LONG)
    assert found.model_dump(exclude={"text"}) == {"before": None, "after": None}
    assert found.model_dump(include={"text"}) == {"text": LONG}
    assert found.model_dump(exclude_none=True) == {"text": LONG}
    assert found.model_dump(exclude_unset=True) == {"text": LONG}
    assert found.model_fields_set == {"text"}


def test_repr_of_partial_contains_each_field() -> None:
    assert repr(partial(City, '{"city_name": "Os')) == (
        "PartialCity(city_name='Os', population=None, explanation=None)"
    )
    assert repr(essay()) == f"PartialEssay(before=5, text={LONG!r}, after=[1, 2])"
    assert str(essay("short")) == "before=5 text='short' after=[1, 2]"


def test_long_list_and_long_dict_of_partial_omit_incomplete_number() -> None:
    class Many(BaseModel):
        numbers: list[int]
        names: dict[str, int]
        after: str = ""

    numbers = ", ".join(map(str, MANY))
    found = partial(Many, f'{{"after": "a", "numbers": [{numbers}, 7')
    assert found.numbers == MANY
    names = ", ".join(f'"{n}": {n}' for n in MANY)
    found = partial(Many, f'{{"after": "a", "names": {{{names}, "x": 7')
    assert found == P[Many](after="a", names={str(n): n for n in MANY})
    assert list(found.model_dump()) == ["numbers", "names", "after"]


def test_long_field_read_later_has_value_at_time_of_its_partial() -> None:
    parser = PushParser(expectation_of(Report))
    parser.feed('{"items": [{"title": "')
    kept = []
    for _ in range(30):
        parser.feed("x" * 100)
        kept.append(parser.value())
    parser.feed('", "tags": [')
    for number in range(100):
        parser.feed(f'"{number}", ')
        kept.append(parser.value())
    parser.feed('"end"]}], "name": "n"}')
    for number, found in enumerate(kept[:30], 1):
        assert found.items[0].title == "x" * 100 * number
    for number, found in enumerate(reversed(kept[30:])):
        assert found.items[0].tags == [str(n) for n in range(100 - number)]
        assert found.name is None


def test_old_partial_has_only_fields_received_up_to_that_time() -> None:
    parser = PushParser(expectation_of(Essay))
    kept = []
    for piece in ("{", '"before": 5', ", ", '"text": "a', '", "after"', ": []}"):
        parser.feed(piece)
        kept.append(parser.value())
    assert [len(found.model_fields_set) for found in kept] == [0, 0, 1, 2, 2, 3]
    assert [len(found.model_dump(exclude_unset=True)) for found in kept] == [0, 0, 1, 2, 2, 3]


def test_long_list_of_models_contains_last_incomplete_item() -> None:
    parser = PushParser(expectation_of(Report))
    parser.feed('{"items": [' + '{"title": "a"}, ' * 80 + '{"title": "b')
    first = parser.value()
    parser.feed('c"}, {"title": "d"}], "name": "n"}')
    assert [item.title for item in first.items] == ["a"] * 80 + ["b"]
    assert [item.title for item in parser.value().items] == ["a"] * 80 + ["bc", "d"]


def test_changed_partial_does_not_change_other_partials() -> None:
    parser = PushParser(expectation_of(Essay))
    parser.feed('{"before": 5, "text": "' + LONG)
    first, second = parser.value(), copy.copy(parser.value())
    first.text = "mine"
    first.before = 6
    parser.feed("more")
    assert (first.before, first.text) == (6, "mine")
    assert (second.before, second.text) == (5, LONG)
    assert (parser.value().before, parser.value().text) == (5, LONG + "more")


def test_partial_instance_is_not_hashable() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(essay())
    with pytest.raises(TypeError, match="unhashable"):
        hash(City(city_name="a", population=1, explanation="b"))


def test_unpickled_partial_has_same_partial_class() -> None:
    found = pickle.loads(pickle.dumps(partial(Report, '{"items": [{"title": "a"}], "best": {"title": "', LONG)))
    assert type(found) is P[Report]
    assert type(found.best) is P[Item]
    assert found.best.title == LONG
    assert found.model_fields_set == {"items", "best"}
    with_more = pickle.loads(pickle.dumps(partial(Open, '{"name": "a", "more": 5}')))
    assert with_more.model_extra == {"more": 5}


def test_deep_copy_of_partial_shares_no_state_with_original() -> None:
    found = partial(Report, '{"items": [{"title": "a"}], "name": "n"}')
    twin = copy.deepcopy(found)
    twin.items[0].title = "b"
    assert found.items[0].title == "a"
    assert type(twin.items[0]) is P[Item]


def test_partial_instance_inside_other_model_is_serialized() -> None:
    class Event(BaseModel):
        partial: Any
        typed: Partial[Essay]

    found = essay()
    made: Any = Event(partial=found, typed=found)
    assert made.model_dump()["partial"] == made.model_dump()["typed"] == {"before": 5, "text": LONG, "after": [1, 2]}
    assert Event.model_validate_json(made.model_dump_json()).typed == found


def test_json_keys_that_are_names_or_aliases_fill_same_partial_field() -> None:
    found = partial(Aliased, '{"firstName": "a", "zwei": 2, "right": "l", "left": "r"}')
    assert (found.first, found.second, found.left, found.right) == ("a", 2, "l", "r")
    assert found.model_dump(by_alias=True) == {"firstName": "a", "second": 2, "right": "l", "left": "r"}


def test_growing_field_can_be_read_in_several_threads() -> None:
    parser = PushParser(expectation_of(Essay))
    parser.feed('{"text": "')
    kept: list[Any] = []
    wrong: list[Any] = []
    done = threading.Event()

    def look() -> None:
        at = 0
        while not done.is_set() or at < len(kept):
            if at < len(kept):
                size, found = kept[at]
                if found.text != "x" * size:
                    wrong.append((size, len(found.text)))
                at += 1

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for size in range(8, 16_000, 8):
        parser.feed("x" * 8)
        kept.append((size, parser.value()))
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_partial_model_base_class_has_no_fields() -> None:
    assert issubclass(P[City], PartialModel)
    assert PartialModel.model_fields == {}
    assert get_origin(P[list[City]]) is list
    assert get_args(P[list[City]]) == (P[City],)

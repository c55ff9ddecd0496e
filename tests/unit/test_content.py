"""Tests of values that contain media: the text, the content parts after the text, and the saved form."""

from __future__ import annotations

import copy
import json
import pickle
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, Field, RootModel, TypeAdapter, computed_field, field_serializer
from tests.cases import case
from tests.parts import Photo, Sketch, Sound, image
from typing_extensions import TypedDict

from acorn._formats.json import (
    PartCollector,
    restore_parts,
    save_parts,
    text_of,
    to_content,
    to_json_data,
    to_json_text,
)
from acorn._formats.xml.encode import XmlStyle, encode_xml

A, B = Photo("a"), Photo("b")


class Pair(NamedTuple):
    first: Photo
    second: Photo


class Named(TypedDict):
    photo: Photo


class Rooted(RootModel[Photo]):
    pass


class Rootless(RootModel[list[Photo | str]]):
    pass


@dataclass
class Framed:
    photo: Photo
    frame: Any = None


class Album(BaseModel):
    title: str = "Oaks"
    photo: Photo = Field(default=A, description="The <best> one")
    others: list[Photo] = []


class Loose(BaseModel):
    value: Any


class Computed(BaseModel):
    """A place that only the serializer knows."""

    url: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def photo(self) -> Photo:
        return Photo(self.url)


class Broken(BaseModel):
    """A model with one field whose serializer raises."""

    photo: Photo = A
    bad: int = 1
    other: Photo = B

    @field_serializer("bad")
    def _fail(self, value: int) -> int:
        raise ValueError("no")


# In XML


def written(value: Any, style: XmlStyle | None = None) -> tuple[str, list[Any]]:
    parts = PartCollector()
    return encode_xml(value, "input", style or XmlStyle(), parts), [part for part, _ in parts.parts]


def test_media_value_is_encoded_as_empty_element_with_number() -> None:
    text, found = written(Album(others=[B, Photo("c")]))
    assert text == (
        "<input>\n"
        "  <title>Oaks</title>\n"
        '  <photo description="The &lt;best&gt; one" media="1" kind="image" />\n'
        "  <others>\n"
        '    <photo media="2" kind="image" />\n'
        '    <photo media="3" kind="image" />\n'
        "  </others>\n"
        "</input>"
    )
    assert found == [image("a"), image("b"), image("c")]


def test_media_value_at_any_nesting_level_is_encoded() -> None:
    for value, inside in [
        (A, ' media="1" kind="image" />'),
        (Loose(value=A), '>\n  <value media="1" kind="image" />\n</input>'),
        (Loose(value=Sound("wav:a")), '>\n  <value media="1" kind="audio" />\n</input>'),
        (
            Loose(value=Sketch(url="a", name='"<cat>&"')),
            '>\n  <value media="1" kind="image" name="&quot;&lt;cat&gt;&amp;&quot;" />\n</input>',
        ),
        (
            [A, "x", Sound("wav:b")],
            '>\n  <photo media="1" kind="image" />\n  <item>x</item>\n  <item media="2" kind="audio" />\n</input>',
        ),
        ((A, B), '>\n  <photo media="1" kind="image" />\n  <photo media="2" kind="image" />\n</input>'),
        (deque([A]), '>\n  <photo media="1" kind="image" />\n</input>'),
        (Pair(A, B), '>\n  <photo media="1" kind="image" />\n  <photo media="2" kind="image" />\n</input>'),
        (
            {"one": A, "no name": B},
            '>\n  <one media="1" kind="image" />\n  <entry key="no name" media="2" kind="image" />\n</input>',
        ),
        (Named(photo=A), '>\n  <photo media="1" kind="image" />\n</input>'),
        (
            Framed(A, {"x": B}),
            '>\n  <photo media="1" kind="image" />\n  <frame>\n    <x media="2" kind="image" />\n  </frame>\n</input>',
        ),
        (Rooted(A), ' media="1" kind="image" />'),
        (Loose(value=[Rooted(A)]), '>\n  <value>\n    <item media="1" kind="image" />\n  </value>\n</input>'),
        (Rootless([A, "x"]), '>\n  <photo media="1" kind="image" />\n  <item>x</item>\n</input>'),
    ]:
        with case(value):
            text, found = written(value)
            assert text == f"<input{inside}"
            assert len(found) == text.count("media=")


def test_description_of_media_field_is_encoded_as_comment() -> None:
    text, _ = written(Album(), XmlStyle(description_format="comment"))
    assert '<!-- The <best> one -->\n  <photo media="1" kind="image" />' in text


def test_equal_media_values_are_sent_as_one_media_part() -> None:
    text, found = written({"x": A, "y": A, "z": B})
    assert text == (
        '<input>\n  <x media="1" kind="image" />\n  <y media="1" kind="image" />\n'
        '  <z media="2" kind="image" />\n</input>'
    )
    assert found == [image("a"), image("b")]
    assert written([Photo("a"), Photo("a")])[1] == [image("a")], "equal ones are the same, as in a saved run"
    assert len(written([Sketch(url="a", name="1"), Sketch(url="a", name="2")])[1]) == 2


def test_dict_that_looks_like_media_placeholder_is_encoded_as_data() -> None:
    text, found = written({"photo": {"media": 1, "kind": "image"}})
    assert text == ("<input>\n  <photo>\n    <media>1</media>\n    <kind>image</kind>\n  </photo>\n</input>")
    assert found == []


def test_media_returned_by_custom_serializer_is_encoded_as_nested_elements() -> None:
    text, found = written(Computed(url="a"))
    assert "<photo>\n    <media>1</media>\n    <kind>image</kind>\n  </photo>" in text
    assert found == [image("a")]


def test_texts_with_one_part_collector_share_media_numbers() -> None:
    parts = PartCollector()
    texts = [encode_xml(value, "context", None, parts) for value in (A, "text", {"x": B})]
    assert texts[0] == '<context media="1" kind="image" />'
    assert texts[2] == '<context>\n  <x media="2" kind="image" />\n</context>'
    assert parts.content("both") == [{"type": "text", "text": "both"}, image("a"), image("b")]


def test_value_without_media_is_encoded_as_plain_text() -> None:
    parts = PartCollector()
    assert parts.content(encode_xml({"x": 1}, "input", None, parts)) == "<input>\n  <x>1</x>\n</input>"


# In JSON


def test_json_content_contains_placeholder_instead_of_media_value() -> None:
    for value, text, parts in [
        (A, '{"media":1,"kind":"image"}', [image("a")]),
        (["See:", A, B], '["See:",{"media":1,"kind":"image"},{"media":2,"kind":"image"}]', [image("a"), image("b")]),
        ({"x": A, "y": [A]}, '{"x":{"media":1,"kind":"image"},"y":[{"media":1,"kind":"image"}]}', [image("a")]),
        (Framed(A), '{"photo":{"media":1,"kind":"image"},"frame":null}', [image("a")]),
        (Computed(url="a"), '{"url":"a","photo":{"media":1,"kind":"image"}}', [image("a")]),
        (Sketch(url="a", name="ä"), '{"media":1,"kind":"image","name":"ä"}', [image("a")]),
        ([Sound("wav:x")], '[{"media":1,"kind":"audio"}]', [Sound("wav:x").__acorn_part__()]),
        (
            [Album(others=[B])],
            '[{"title":"Oaks","photo":{"media":1,"kind":"image"},"others":[{"media":2,"kind":"image"}]}]',
            [image("a"), image("b")],
        ),
    ]:
        with case(value):
            assert to_content(value) == [{"type": "text", "text": text}, *parts]


def test_json_content_of_value_without_media_is_plain_text() -> None:
    for value in [1, None, True, [], {}, {"media": 1, "kind": "image"}, Loose(value=[1]), object()]:
        with case(value):
            assert to_content(value) == to_json_text(value)


@pytest.mark.parametrize("bad", [b"\xff", "\ud800"])
def test_media_next_to_unserializable_value_is_encoded(bad: Any) -> None:
    content = to_content({"x": A, "bad": bad, "y": B})
    assert isinstance(content, list)
    assert content[1:] == [image("a"), image("b")]
    plain = json.loads(content[0]["text"])
    assert (plain["x"], plain["y"]) == ({"media": 1, "kind": "image"}, {"media": 2, "kind": "image"})


def test_content_of_model_with_failing_serializer_raises_its_error() -> None:
    for value in (Broken(), [Broken()], {"a": b"\xff", "b": Broken()}):
        for convert in (to_content, written):
            with pytest.raises(ValueError, match="no"):
                convert(value)


class Lost(Photo):
    """A part whose data is gone."""

    def __acorn_part__(self) -> dict[str, Any]:
        raise FileNotFoundError(self.url)


def test_media_value_that_cannot_be_sent_raises_its_error() -> None:
    for value in (Lost("gone"), [Lost("gone"), A], {"x": Lost("gone")}):
        for convert in (to_content, written):
            with pytest.raises(ValueError, match="FileNotFoundError: gone"):
                convert(value)


# Other serialization


@pytest.mark.parametrize("part", [A, Sketch(url="a", name="b"), Sound("wav:a")])
def test_media_value_is_equal_after_serialization_and_pickling(part: Any) -> None:
    adapter = TypeAdapter(type(part))
    assert adapter.validate_json(adapter.dump_json(part)) == part
    assert adapter.validate_json(to_json_text(part)) == part, "also where no type is known"
    assert adapter.validate_python(to_json_data([part])[0]) == part
    assert adapter.json_schema()
    assert copy.deepcopy(part) == part
    assert pickle.loads(pickle.dumps(part)) == part


class Either(BaseModel):
    one: Photo | Sound | str
    other: Sketch | Sound | Photo | str


@pytest.mark.parametrize("value", [A, Sound("wav:a"), "text"])
def test_media_value_in_union_field_is_encoded(value: Any) -> None:
    either = Either(one=value, other=value)
    count = 0 if value == "text" else 1
    assert len(written(either)[1]) == count
    assert written(either)[0].count('media="1"') == 2 * count
    again = Either.model_validate_json(either.model_dump_json())
    assert again == either


def test_text_of_joins_text_parts_of_message_content() -> None:
    for content, text in [
        ("text", "text"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, image("x"), {"type": "text", "text": "b"}], "a\nb"),
        (["a", 5, {"text": 5}], "a"),
        ({"x": 1}, '{"x":1}'),
    ]:
        with case(content):
            assert text_of(content) == text


# Saved


def test_value_with_media_is_equal_after_save_and_restore() -> None:
    for value in [
        A,
        [A, {"x": [B, "y"]}, A],
        Album(others=[B]),
        {"__part__": 1, "__part___": A, "deep": [{"__part____": [Sketch(url="s", name="n")]}]},
        {"media": 1, "x": Sound("wav:y")},
    ]:
        with case(value):
            text, saved = json.loads(json.dumps(save_parts(value)))
            again = restore_parts(json.loads(text), saved)
            assert to_content(again) == to_content(value)
            text, saved = json.loads(json.dumps(save_parts(again)))
            assert to_content(restore_parts(json.loads(text), saved)) == to_content(value)


def test_value_without_media_is_saved_unchanged() -> None:
    assert save_parts({"__part__": 1}) == ('{"__part__":1}', None)

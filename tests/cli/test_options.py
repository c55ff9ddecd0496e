"""Tests of command-line options for input fields: each kind of value, in each accepted form."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case
from tests.cli.conftest import AGENTS, Acorn

ECHO = AGENTS / "echo.py"

KINDS: list[tuple[list[str], dict[str, Any]]] = [
    ([], {"text": "nothing", "count": 1, "tags": [], "address": None}),
    (["--text", "hello you"], {"text": "hello you"}),
    (["--text=a=b"], {"text": "a=b"}),
    (["--text", "-5"], {"text": "-5"}),
    (["--text", ""], {"text": ""}),
    (["--text", "null"], {"text": "null"}),
    (["--text", '{"a": 1}'], {"text": '{"a": 1}'}),
    (["--count", "3"], {"count": 3}),
    (["--ratio", "-2.5e3"], {"ratio": -2500.0}),
    (["--price", "2.10"], {"price": "2.10"}),
    (["--day", "2024-05-01"], {"day": "2024-05-01"}),
    (["--day", "null"], {"day": None}),
    (["--color", "green"], {"color": "green"}),
    (["--size", "2"], {"size": 2}),
    (["--mood", "wild"], {"mood": "wild"}),
    (["--level", "2"], {"level": 2}),
    (["--loud"], {"loud": True}),
    (["--no-loud"], {"loud": False}),
    (["--loud=false"], {"loud": False}),
    (["--loud=true"], {"loud": True}),
    (["--sure"], {"sure": True}),
    (["--no-sure"], {"sure": False}),
    (["--tags", "a", "--tags", "b"], {"tags": ["a", "b"]}),
    (["--tags", '["a", "b"]'], {"tags": ["a", "b"]}),
    (["--tags", "[]"], {"tags": []}),
    (["--tags", "[draft"], {"tags": ["[draft"]}),
    (["--numbers", "1", "--numbers", "2"], {"numbers": [1, 2]}),
    (["--numbers", "null"], {"numbers": None}),
    (["--rows", "[1, 2]"], {"rows": [[1, 2]]}),
    (["--rows", "[[1, 2], [3]]"], {"rows": [[1, 2], [3]]}),
    (["--rows", "[1]", "--rows", "[2, 3]"], {"rows": [[1], [2, 3]]}),
    (["--pair", "1", "--pair", "x"], {"pair": [1, "x"]}),
    (["--pair", '[1, "x"]'], {"pair": [1, "x"]}),
    (["--address", '{"city": "Oslo"}'], {"address": {"city": "Oslo", "zip_code": None}}),
    (["--address.city", "Oslo", "--address.zip-code", "7"], {"address": {"city": "Oslo", "zip_code": 7}}),
    (["--address.zip_code=7", "--address", '{"city": "Oslo"}'], {"address": {"city": "Oslo", "zip_code": 7}}),
    (["--address", "null"], {"address": None}),
    (["--places", '{"city": "A"}', "--places", '{"city": "B"}'], {"places": [
        {"city": "A", "zip_code": None}, {"city": "B", "zip_code": None}]}),
    (["--places.0.city", "A", "--places.1.city", "B"], {"places": [
        {"city": "A", "zip_code": None}, {"city": "B", "zip_code": None}]}),
    (["--places.1.city", "B", "--places.0.city", "A"], {"places": [
        {"city": "A", "zip_code": None}, {"city": "B", "zip_code": None}]}),
    (["--tree.name", "a", "--tree.children.0.name", "b"], {"tree": {
        "name": "a", "children": [{"name": "b", "children": []}]}}),
    (["--scores", '{"a": 1}'], {"scores": {"a": 1}}),
    (["--scores.a", "1", "--scores.b-c", "2", "--scores.d.e", "3"], {"scores": {"a": 1, "b-c": 2, "d.e": 3}}),
    (["--nested.home.city", "Rome"], {"nested": {"home": {"city": "Rome", "zip_code": None}}}),
    (["--number-or-text", "5"], {"number_or_text": 5}),
    (["--number-or-text", "five"], {"number_or_text": "five"}),
    (["--number-or-texts", "5"], {"number_or_texts": 5}),
    (["--number-or-texts", "five"], {"number_or_texts": ["five"]}),
    (["--number-or-texts", "5", "--number-or-texts", "6"], {"number_or_texts": ["5", "6"]}),
    (["--number-or-texts", '["5"]'], {"number_or_texts": ["5"]}),
    (["--text-or-texts", "a"], {"text_or_texts": "a"}),
    (["--text-or-texts", "a", "--text-or-texts", "b"], {"text_or_texts": ["a", "b"]}),
    (["--pet.kind", "dog", "--no-pet.barks"], {"pet": {"kind": "dog", "barks": False}}),
    (["--person.givenName", "Ann", "--person.is-old"], {"person": {"given_name": "Ann", "is_old": True}}),
    (["--anything", "5"], {"anything": 5}),
    (["--anything", "five"], {"anything": "five"}),
    (["--anything", '[1, {"a": null}]'], {"anything": [1, {"a": None}]}),
    (["--anything.a.b", "1"], {"anything": {"a": {"b": 1}}}),
    (["--two-words", "x"], {"two_words": "x"}),
    (["--two_words", "x"], {"two_words": "x"}),
]  # fmt: skip


def test_option_sets_input_field(acorn: Acorn) -> None:
    for words, expected in KINDS:
        with case(*words):
            ended = acorn("run", f"{ECHO}:Kinds", *words)
            assert ended.code == 0, ended.err
            assert {name: ended.output[name] for name in expected} == expected


WRONG: list[tuple[str, list[str], str]] = [
    ("Kinds", ["--count", "many"], "`--count` must be an integer between 1 and 10, got 'many'"),
    ("Kinds", ["--count", "11"], "`--count` must be an integer between 1 and 10, got"),
    ("Kinds", ["--day", "soon"], "`--day` must be a date as YYYY-MM-DD"),
    ("Kinds", ["--color", "blue"], '`--color` must be one of "red", "green", got \'blue\''),
    ("Kinds", ["--level", "3"], "`--level` must be one of 1, 2"),
    ("Kinds", ["--numbers", "1", "--numbers", "x"], "`1` of `--numbers` must be an integer, got 'x'"),
    (
        "Kinds",
        ["--address", "Oslo"],
        "`--address` must be JSON (object with city, zip_code), got 'Oslo'. Or set its fields one by one",
    ),
    ("Kinds", ["--address.zip-code", "7"], "`--address.city` is missing (expected a string)"),
    ("Kinds", ["--address.street", "x"], "There is no option `--address.street`"),
    ("Kinds", ["--places.1.city", "B"], "`--places.1.city` needs an item 0 before it"),
    ("Kinds", ["--text", "rude"], "`--text` is invalid: be polite (got 'rude')"),
    ("Kinds", ["--text"], "`--text` needs a value"),
    ("Kinds", ["--text", "--count", "3"], "`--text` needs a value. If the value is `--count`, write `--text=--count`"),
    ("Kinds", ["--txt", "x"], "There is no option `--txt`. Did you mean `--text`"),
    ("Kinds", ["--text", "x", "--modell", "y"], "There is no option `--modell`. Did you mean `--model` or `--mood`"),
    ("Kinds", ["--no-text"], "There is no option `--no-text`"),
    ("Kinds", ["-t", "x"], "There is no option `-t`"),
    (
        "Kinds",
        ["--loud", "true"],
        "Unexpected argument `true` after `--loud`, which does not accept a value. Remove the argument. To set the",
    ),
    ("Kinds", ["--loud", "maybe"], "Unexpected argument `maybe` after `--loud`, which does not accept a value"),
    ("Kinds", ["--json", "yes"], "Unexpected argument `yes` after `--json`, which does not accept a value"),
    ("Kinds", ["hello"], "Unexpected argument `hello`. Did you mean `--text hello`?"),
    ("Kinds", ["hello you"], "Unexpected argument `hello you`. Did you mean `--text 'hello you'`?"),
    (
        "Kinds",
        ["--text", "hello", "you"],
        "Unexpected argument `you`. If it is part of the value of `--text`, put the value in quotes",
    ),
    ("Kinds", ["--model", "a/b", "hello"], "Unexpected argument `hello`. Did you mean `--text hello`?"),
    ("Kinds", ["--text", "a", "--text", "b"], "`--text` occurs twice, but it accepts only one value"),
    ("Kinds", ["--two-words", "a", "--two_words=b"], "`--two-words` occurs twice"),
    ("Kinds", ["--loud", "--no-loud"], "`--loud` occurs twice"),
    ("Kinds", ["--address", "null", "--address", "{}"], "`--address` occurs twice"),
    ("Aliased", ["--from", "a", "--from_", "b"], "occurs twice"),
    ("Plain", ["a", "--result", "b"], "There is no option `--result`"),
    ("Kinds", ["--model", "a/b", "--model", "c/d"], "`--model` occurs twice, but it accepts only one value"),
    ("Needs", [], "`--name` is missing (expected a string). `--born` is missing (expected a date as YYYY-MM-DD)"),
    ("Plain", [], "the argument is missing (expected a string)"),
    ("Plain", ["--input", "a"], "There is no file `a`. `--input` reads a JSON file. To pass `a` itself, leave out"),
    ("Plain", ["--text", "a"], "There is no option `--text`. Pass the input without the name of an option"),
    ("Plain", ["a", "b"], "Unexpected argument `b`"),
    ("Numbers", ["1", "x"], "the argument must be"),
    ("Nothing", ["x"], "Unexpected argument `x`. The module has no input"),
    ("Nothing", ["--text", "x"], "There is no option `--text`"),
    ("Kinds", ["--json=yes"], "`--json` does not accept a value"),
    ("Kinds", ["--model"], "`--model` needs a value"),
    ("Kinds", ["--model", " "], "must be a model id"),
]


def test_wrong_option_exits_with_2_and_one_line_error(acorn: Acorn) -> None:
    for cls, words, message in WRONG:
        with case(cls, *words):
            ended = acorn("run", f"{ECHO}:{cls}", *words)
            assert ended.code == 2
            assert ended.out == ""
            assert ended.err.startswith("error: ")
            assert message in ended.err
            assert ended.err.count("\n") == 1


INPUT_TYPES: list[tuple[str, list[str], dict[str, Any]]] = [
    ("Plain", ["hello"], {"input": "hello"}),
    ("Plain", ["--", "--hello"], {"input": "--hello"}),
    ("Plain", ["-5"], {"input": "-5"}),
    ("Numbers", ["1", "2"], {"input": [1, 2]}),
    ("Numbers", ["[1, 2]"], {"input": [1, 2]}),
    ("Dots", ["--x", "1", "--y", "2"], {"input": {"x": 1, "y": 2}}),
    ("Dots", ["--input.x", "1"], {"input": {"x": 1, "y": 0}}),
    ("Nothing", [], {}),
    ("Extra", ["--name", "x", "--size", "3"], {"name": "x", "size": 3}),
    ("Aliased", ["--from", "there", "--class", "second"], {"from_": "there", "class_": "second"}),
    ("Aliased", ["--from_", "there"], {"from_": "there"}),
]


def test_options_set_values_of_each_input_type(acorn: Acorn) -> None:
    for cls, words, expected in INPUT_TYPES:
        with case(cls, *words):
            ended = acorn("run", f"{ECHO}:{cls}", *words)
            assert ended.code == 0, ended.err
            assert {name: ended.output[name] for name in expected} == expected


def test_option_named_like_input_field_sets_field_instead_of_acorn_option(acorn: Acorn, tmp_path: Path) -> None:
    words = ["--model", "T", "--json", "--input", "here", "--help", "me", "--save", "us", "--acorn-json"]
    ended = acorn("run", f"{ECHO}:Clash", *words, "--acorn-save", tmp_path / "run.json")
    assert ended.code == 0, ended.err
    assert ended.output["output"] == {"model": "T", "json": True, "input": "here", "help": "me", "save": "us"}
    assert (tmp_path / "run.json").exists()


def test_acorn_prefix_separates_acorn_option_from_field_of_same_name(acorn: Acorn) -> None:
    output = acorn("run", f"{ECHO}:Prefixed", "--acorn_model", "a", "--model", "b", "--no-save", "--acorn-json").output
    assert output["output"] == {"model": "b", "acorn_model": "a", "save": False, "no_save": True}


def test_option_before_target_is_acorn_option_even_if_field_has_same_name(acorn: Acorn) -> None:
    ended = acorn("run", "--json", f"{ECHO}:Clash", "--model", "T")
    assert ended.output["output"]["model"] == "T"
    assert ended.output["output"]["json"] is False


def test_acorn_option_given_before_and_after_target_exits_with_2(acorn: Acorn) -> None:
    ended = acorn("run", "--save", "a.json", f"{ECHO}:Kinds", "--save", "b.json")
    assert (ended.code, ended.err) == (
        2,
        "error: `--save` occurs twice, but it accepts only one value. Remove one of them.\n",
    )


def test_acorn_prefixed_option_is_accepted_without_name_clash(acorn: Acorn) -> None:
    assert acorn("run", f"{ECHO}:Kinds", "--acorn-json").output["model"] == "scripted"


def test_options_override_single_fields_of_input_file(acorn: Acorn, tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_text(json.dumps({"text": "file", "count": 2, "address": {"city": "Rome", "zip_code": 1}, "tags": ["x"]}))
    words = ["--count", "3", "--address.city", "Oslo", "--tags", "y"]
    output = acorn("run", f"{ECHO}:Kinds", "--input", file, *words).output
    assert (output["text"], output["count"], output["tags"]) == ("file", 3, ["y"])
    assert output["address"] == {"city": "Oslo", "zip_code": 1}


def test_input_file_with_field_aliases_is_accepted(acorn: Acorn, tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"from": "file"}')
    assert acorn("run", f"{ECHO}:Aliased", "--input", file).output["from_"] == "file"
    assert acorn("run", f"{ECHO}:Aliased", "--input", file, "--from", "option").output["from_"] == "option"


def test_options_with_aliases_of_nested_fields_set_fields(acorn: Acorn) -> None:
    words = ["--addr.streetName", "a", "--addrs.0.streetName", "b", "--animal.wolfName", "c"]
    words += ["--animal.kind", "wolf"]
    output = acorn("run", f"{ECHO}:Aliased", *words).output
    assert output["addr"] == {"street": "a", "number": 0}
    assert output["addrs"] == [{"street": "b", "number": 0}]
    assert output["animal"] == {"kind": "wolf", "name": "c"}


@pytest.mark.parametrize("field", ["street", "streetName"])
def test_options_override_nested_fields_in_input_file(acorn: Acorn, tmp_path: Path, field: str) -> None:
    file = tmp_path / "input.json"
    file.write_text(json.dumps({"addr": {field: "file", "number": 1}, "addrs": [{field: "file"}]}))
    words = ["--input", file, "--addr.streetName", "a", "--addrs.0.streetName", "b"]
    output = acorn("run", f"{ECHO}:Aliased", *words).output
    assert output["addr"] == {"street": "a", "number": 1}
    assert output["addrs"] == [{"street": "b", "number": 0}]


def test_input_option_with_dash_reads_stdin(acorn: Acorn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"text": "piped"}'))
    assert acorn("run", f"{ECHO}:Kinds", "--input", "-").output["text"] == "piped"


def test_input_file_for_list_input_contains_json_list(acorn: Acorn, tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_text("[1, 2]")
    assert acorn("run", f"{ECHO}:Numbers", "--input", file).output == {"input": [1, 2]}


def test_wrong_input_file_exits_with_2_and_one_line_error(acorn: Acorn, tmp_path: Path) -> None:
    for content, message in [
        (None, "Cannot read `--input {file}`: No such file"),
        ('{"count": 99}', "`count` in `{file}` must be an integer between 1 and 10, got 99"),
        ('{"counts": 9}', "`counts` in `{file}` is not an input"),
        ("[1]", "`{file}` must contain a JSON object, got [1]"),
        ("{", "`{file}` does not contain valid JSON"),
    ]:
        with case(content):
            file = tmp_path / "input.json"
            if content is not None:
                file.write_text(content)
            ended = acorn("run", f"{ECHO}:Kinds", "--input", file)
            assert ended.code == 2
            assert message.format(file=file) in ended.err
            assert ended.err.count("\n") == 1


def test_unknown_field_of_dataclass_in_input_file_is_reported(acorn: Acorn, tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"x": 1, "z": 2}')
    assert f"`z` in `{file}` is not an input." in acorn("run", f"{ECHO}:Dots", "--input", str(file)).err


def test_missing_field_of_dataclass_is_reported_as_option(acorn: Acorn) -> None:
    assert "`--x` is missing (expected an integer)" in acorn("run", f"{ECHO}:Dots").err

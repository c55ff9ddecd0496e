"""Tests of the error classes: their base classes, their attributes, and pickling."""

import pickle
from typing import Any

import pytest

import acorn
from acorn import (
    AcornError,
    BranchError,
    DeclarationError,
    InputError,
    LimitError,
    ModelError,
    ParseError,
    StoreError,
    ToolConflictError,
    errors,
)

TREE: list[tuple[type[Exception], tuple[type[Exception], ...]]] = [
    (AcornError, (Exception,)),
    (DeclarationError, (AcornError,)),
    (ToolConflictError, (DeclarationError,)),
    (InputError, (AcornError, ValueError)),
    (ParseError, (AcornError,)),
    (BranchError, (AcornError,)),
    (ModelError, (AcornError,)),
    (LimitError, (AcornError,)),
    (StoreError, (AcornError,)),
]
ALL = [kind for kind, _ in TREE]

DEFAULTS: list[tuple[type[AcornError], dict[str, Any]]] = [
    (ParseError, {"raw_output": "", "errors": [], "attempts": 1}),
    (ModelError, {"provider": None, "status": None, "retryable": False, "retry_after": None, "timed_out": False}),
]

CARRIED: list[tuple[type[AcornError], dict[str, Any]]] = [
    (
        ParseError,
        {
            "raw_output": '{"answer": ',
            "errors": [{"path": "answer", "expected": "string", "received": "missing"}],
            "attempts": 3,
        },
    ),
    (ModelError, {"provider": "openai", "status": 429, "retryable": True, "retry_after": 1.5, "timed_out": True}),
]


@pytest.mark.parametrize(("kind", "parents"), TREE)
def test_each_error_class_has_its_documented_base_classes(
    kind: type[Exception], parents: tuple[type[Exception], ...]
) -> None:
    assert kind.__bases__ == parents


@pytest.mark.parametrize("kind", ALL)
def test_except_acorn_error_catches_every_error_class(kind: type[Exception]) -> None:
    with pytest.raises(AcornError):
        raise kind("something is wrong")


@pytest.mark.parametrize("kind", ALL)
def test_each_error_class_is_public_and_defined_in_errors_module(kind: type[Exception]) -> None:
    assert kind.__name__ in acorn.__all__
    assert getattr(acorn, kind.__name__) is kind
    assert getattr(errors, kind.__name__) is kind


def test_errors_module_defines_no_other_public_class() -> None:
    public = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    # Media fields raise `UnknownMediaTypeError`, which Pydantic turns into a validation error.
    assert public == {kind.__name__ for kind in ALL} | {"UnknownMediaTypeError"}


def test_input_error_is_subclass_of_value_error() -> None:
    with pytest.raises(ValueError, match="`question` is missing"):
        raise InputError("`question` is missing")


@pytest.mark.parametrize("kind", [DeclarationError, ParseError, BranchError, ModelError, LimitError, StoreError])
def test_error_classes_other_than_input_error_are_not_subclasses_of_value_error(kind: type[Exception]) -> None:
    assert not issubclass(kind, ValueError)


@pytest.mark.parametrize("kind", ALL)
def test_str_of_error_equals_message_passed_to_constructor(kind: type[Exception]) -> None:
    error = kind("what happened, where, what to do")
    assert str(error) == "what happened, where, what to do"
    assert error.args == ("what happened, where, what to do",)
    assert repr(error) == f"{kind.__name__}('what happened, where, what to do')"


@pytest.mark.parametrize(("kind", "defaults"), DEFAULTS)
def test_error_created_with_message_only_has_default_attributes(
    kind: type[AcornError], defaults: dict[str, Any]
) -> None:
    assert vars(kind("wrong")) == defaults


@pytest.mark.parametrize(("kind", "carried"), CARRIED)
def test_error_attributes_equal_values_passed_to_constructor(kind: type[AcornError], carried: dict[str, Any]) -> None:
    error = kind("wrong", **carried)
    assert vars(error) == carried
    assert str(error) == "wrong"


@pytest.mark.parametrize(("kind", "carried"), CARRIED)
def test_error_attributes_are_keyword_only(kind: type[AcornError], carried: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        kind("wrong", *carried.values())


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_errors_are_equal_after_loading(kind: type[Exception], protocol: int) -> None:
    back = pickle.loads(pickle.dumps(kind("wrong"), protocol))
    assert type(back) is kind
    assert back.args == ("wrong",)
    assert vars(back) == vars(kind("wrong"))


@pytest.mark.parametrize(("kind", "carried"), CARRIED)
def test_pickled_error_attributes_are_equal_after_loading(kind: type[AcornError], carried: dict[str, Any]) -> None:
    back = pickle.loads(pickle.dumps(kind("wrong", **carried)))
    assert type(back) is kind
    assert str(back) == "wrong"
    assert vars(back) == carried


@pytest.mark.parametrize("kind", ALL)
def test_pickled_error_contains_notes_and_user_attributes(kind: type[Exception]) -> None:
    error = kind("wrong")
    error.add_note("in step 3")
    vars(error)["run"] = "r-1"
    back = pickle.loads(pickle.dumps(error))
    assert back.__notes__ == ["in step 3"]
    assert back.run == "r-1"


def test_parse_error_stores_copy_of_passed_errors_list() -> None:
    given = [{"path": "answer", "expected": "string", "received": "5"}]
    error = ParseError("wrong", errors=given)
    given.clear()
    assert error.errors == [{"path": "answer", "expected": "string", "received": "5"}]
    assert ParseError("one").errors is not ParseError("two").errors


def test_branch_error_cause_is_exception_of_branch() -> None:
    cause = ParseError("the model never gave a valid answer", raw_output="{}")
    with pytest.raises(BranchError) as caught:
        raise BranchError("the branch `FactChecker` failed") from cause
    assert caught.value.__cause__ is cause


def test_tool_conflict_error_is_subclass_of_declaration_error() -> None:
    assert issubclass(ToolConflictError, DeclarationError)
    assert not issubclass(DeclarationError, ToolConflictError)

"""Tests of the error classes: their base classes, their attributes, and pickling."""

import pickle
from typing import Any

import pytest
from tests.cases import case

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


def test_each_error_class_has_its_documented_base_classes() -> None:
    assert [(kind, kind.__bases__) for kind in ALL] == TREE


def test_errors_module_defines_exactly_public_error_classes() -> None:
    for kind in ALL:
        assert kind.__name__ in acorn.__all__
        assert getattr(acorn, kind.__name__) is getattr(errors, kind.__name__) is kind
    public = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    # Media fields raise `UnknownMediaTypeError`, which Pydantic turns into a validation error.
    assert public == {kind.__name__ for kind in ALL} | {"UnknownMediaTypeError"}


def test_str_of_error_equals_message_passed_to_constructor() -> None:
    for kind in ALL:
        error = kind("what happened, where, what to do")
        assert str(error) == "what happened, where, what to do"
        assert error.args == ("what happened, where, what to do",)
        assert repr(error) == f"{kind.__name__}('what happened, where, what to do')"


def test_error_created_with_message_only_has_default_attributes() -> None:
    for kind, defaults in DEFAULTS:
        assert vars(kind("wrong")) == defaults


def test_error_attributes_equal_keyword_arguments_of_constructor() -> None:
    for kind, carried in CARRIED:
        error = kind("wrong", **carried)
        assert vars(error) == carried
        assert str(error) == "wrong"
        with pytest.raises(TypeError):
            kind("wrong", *carried.values())


def test_pickled_error_has_same_message_attributes_and_notes_after_loading() -> None:
    for kind, carried in [*((kind, {}) for kind in ALL), *CARRIED]:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with case(kind, protocol):
                error: Any = kind("wrong", **carried)
                error.add_note("in step 3")
                vars(error)["run"] = "r-1"
                back: Any = pickle.loads(pickle.dumps(error, protocol))
                assert type(back) is kind
                assert back.args == ("wrong",)
                assert vars(back) == {**vars(kind("wrong", **carried)), "__notes__": ["in step 3"], "run": "r-1"}


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

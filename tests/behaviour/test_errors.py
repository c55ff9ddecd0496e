"""The tree of errors: who is whose child, what each carries, and that all of it survives pickling."""

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
    (ModelError, {"provider": None, "status": None, "retryable": False, "retry_after": None}),
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
    (ModelError, {"provider": "openai", "status": 429, "retryable": True, "retry_after": 1.5}),
]


@pytest.mark.parametrize(("kind", "parents"), TREE)
def test_every_error_stands_in_its_place_of_the_tree(
    kind: type[Exception], parents: tuple[type[Exception], ...]
) -> None:
    assert kind.__bases__ == parents


@pytest.mark.parametrize("kind", ALL)
def test_one_except_clause_catches_every_error(kind: type[Exception]) -> None:
    with pytest.raises(AcornError):
        raise kind("something is wrong")


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_a_public_name_and_lives_in_errors(kind: type[Exception]) -> None:
    assert kind.__name__ in acorn.__all__
    assert getattr(acorn, kind.__name__) is kind
    assert getattr(errors, kind.__name__) is kind


def test_there_are_no_other_public_errors() -> None:
    public = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert public == {kind.__name__ for kind in ALL}


def test_an_input_error_is_caught_as_a_value_error() -> None:
    with pytest.raises(ValueError, match="`question` is missing"):
        raise InputError("`question` is missing")


@pytest.mark.parametrize("kind", [DeclarationError, ParseError, BranchError, ModelError, LimitError, StoreError])
def test_no_other_error_is_a_value_error(kind: type[Exception]) -> None:
    assert not issubclass(kind, ValueError)


@pytest.mark.parametrize("kind", ALL)
def test_the_words_are_the_message(kind: type[Exception]) -> None:
    error = kind("what happened, where, what to do")
    assert str(error) == "what happened, where, what to do"
    assert error.args == ("what happened, where, what to do",)
    assert repr(error) == f"{kind.__name__}('what happened, where, what to do')"


@pytest.mark.parametrize(("kind", "defaults"), DEFAULTS)
def test_what_an_error_carries_has_defaults(kind: type[AcornError], defaults: dict[str, Any]) -> None:
    assert vars(kind("wrong")) == defaults


@pytest.mark.parametrize(("kind", "carried"), CARRIED)
def test_an_error_carries_what_it_was_given(kind: type[AcornError], carried: dict[str, Any]) -> None:
    error = kind("wrong", **carried)
    assert vars(error) == carried
    assert str(error) == "wrong"


@pytest.mark.parametrize(("kind", "carried"), CARRIED)
def test_what_an_error_carries_is_given_by_name_only(kind: type[AcornError], carried: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        kind("wrong", *carried.values())


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_pickling(kind: type[Exception], protocol: int) -> None:
    back = pickle.loads(pickle.dumps(kind("wrong"), protocol))
    assert type(back) is kind
    assert back.args == ("wrong",)
    assert vars(back) == vars(kind("wrong"))


@pytest.mark.parametrize(("kind", "carried"), CARRIED)
def test_what_an_error_carries_survives_pickling(kind: type[AcornError], carried: dict[str, Any]) -> None:
    back = pickle.loads(pickle.dumps(kind("wrong", **carried)))
    assert type(back) is kind
    assert str(back) == "wrong"
    assert vars(back) == carried


@pytest.mark.parametrize("kind", ALL)
def test_what_others_hang_on_an_error_survives_pickling(kind: type[Exception]) -> None:
    error = kind("wrong")
    error.add_note("in step 3")
    vars(error)["run"] = "r-1"
    back = pickle.loads(pickle.dumps(error))
    assert back.__notes__ == ["in step 3"]
    assert back.run == "r-1"


def test_the_errors_of_a_parse_error_are_a_list_of_its_own() -> None:
    given = [{"path": "answer", "expected": "string", "received": "5"}]
    error = ParseError("wrong", errors=given)
    given.clear()
    assert error.errors == [{"path": "answer", "expected": "string", "received": "5"}]
    assert ParseError("one").errors is not ParseError("two").errors


def test_a_branch_error_keeps_its_cause() -> None:
    cause = ParseError("the model never gave a valid answer", raw_output="{}")
    with pytest.raises(BranchError) as caught:
        raise BranchError("the branch `FactChecker` failed") from cause
    assert caught.value.__cause__ is cause


def test_a_wrong_declaration_and_a_conflict_of_tools_are_told_apart() -> None:
    assert issubclass(ToolConflictError, DeclarationError)
    assert not issubclass(DeclarationError, ToolConflictError)

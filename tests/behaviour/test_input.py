"""Tests of the arguments of a call and of the error messages for wrong arguments."""

import dataclasses
import datetime
import enum
import pickle
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from tests.cases import each_case
from typing_extensions import TypedDict

from acorn import AcornError, DeclarationError, InputError, module
from acorn._declare.spec_cache import spec_of
from acorn.testing import ScriptedModel, finish


class Question(BaseModel):
    question: str = Field(description="The question to answer")
    limit: int = Field(default=5, ge=1, le=10)


class FollowUp(Question):
    earlier: str = ""


class Lookalike(BaseModel):
    question: str


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Survey(BaseModel):
    day: datetime.date
    questions: list[Question]
    color: Color = Color.RED
    notes: dict[str, Question] = {}


class Renamed(BaseModel):
    q: str = Field(alias="query")
    n: int = Field(default=1, validation_alias="number")
    c: int = Field(default=1, validation_alias=AliasChoices("first", "second"))
    p: int = Field(default=1, validation_alias=AliasPath("parts", 0))
    s: int = Field(default=1, serialization_alias="written")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    q: str


class OpenAndEmpty(BaseModel):
    model_config = ConfigDict(extra="allow")


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    q: str


class Careless(BaseModel):
    model_config = ConfigDict(extra="ignore")

    q: str


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    n: int


class Span(BaseModel):
    low: int
    high: int

    @field_validator("low")
    @classmethod
    def _low(cls, low: int) -> int:
        if low == 13:
            raise ValueError("thirteen is unlucky")
        return low

    @model_validator(mode="after")
    def _order(self) -> "Span":
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


@dataclasses.dataclass
class Place:
    x: int
    y: int = 0


class Point(TypedDict):
    x: int


class Numbers(RootModel[list[int]]):
    pass


def call(declared: Any, /, *args: Any, **kwargs: Any) -> BaseModel:
    """Return the input that an agent with this `initial_input` makes of the arguments of a call."""
    agent = type("Agent", (module,), {"__module__": __name__, "initial_input": declared})()
    return spec_of(agent).input.from_call("Agent", args, kwargs)


def complaint(declared: Any, /, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(declared, *args, **kwargs)
    return str(caught.value)


# Valid arguments


def test_keyword_arguments_become_input_instance() -> None:
    assert call(Question, question="Why?", limit=3) == Question(question="Why?", limit=3)


def test_input_defaults_fill_missing_arguments() -> None:
    assert call(Question, question="Why?") == Question(question="Why?", limit=5)


def test_input_values_are_converted_by_pydantic() -> None:
    given = call(Survey, day="2024-02-29", questions=[{"question": "Why?", "limit": "2"}], color="blue")
    assert given == Survey(
        day=datetime.date(2024, 2, 29), questions=[Question(question="Why?", limit=2)], color=Color.BLUE
    )


def test_keyword_arguments_in_any_order_create_equal_input() -> None:
    assert call(Question, limit=2, question="Why?") == call(Question, question="Why?", limit=2)


def test_positional_input_instance_is_used_unchanged() -> None:
    given = Question(question="Why?")
    assert call(Question, given) is given


def test_positional_subclass_instance_is_accepted() -> None:
    given = FollowUp(question="Why?", earlier="How?")
    assert call(Question, given) is given


def test_model_instances_nested_in_input_are_used_unchanged() -> None:
    inner = Question(question="Why?")
    given = call(Survey, day=datetime.date(2024, 1, 1), questions=[inner])
    assert isinstance(given, Survey)
    assert given.questions[0] is inner


def test_field_list_input_accepts_keyword_arguments() -> None:
    fields: list[Any] = [
        "q",
        ("n", int),
        ("limit", int, 3),
        ("tags", list[str], Field(default_factory=list, description="Tags")),
    ]
    assert call(fields, q="a", n="7").model_dump() == {"q": "a", "n": 7, "limit": 3, "tags": []}


NAMES = ["title", "self", "model", "type", "default", "description", "copy", "json", "schema", "cls", "owner", "args"]


def test_input_fields_named_like_python_or_acorn_names_are_accepted() -> None:
    given = call(NAMES, **{name: name.upper() for name in NAMES})
    assert given.__dict__ == {name: name.upper() for name in NAMES}


PLAIN: list[tuple[Any, Any, Any]] = [
    (str, "text", "text"),
    (int, "5", 5),
    (list[str], ["a", "b"], ["a", "b"]),
    (list[int], ["1", 2], [1, 2]),
    (dict[str, int], {"a": "1"}, {"a": 1}),
    (Place, Place(1, 2), Place(1, 2)),
    (Place, {"x": "1"}, Place(1)),
    (Point, {"x": "1"}, {"x": 1}),
    (Numbers, [1, "2"], Numbers([1, 2])),
    (Numbers, Numbers([1]), Numbers([1])),
    (int | str, "5", "5"),
    (int | None, None, None),
    (Annotated[int, Field(gt=0)], 1, 1),
    (Literal["a", "b"], "b", "b"),
    (Color, "red", Color.RED),
    (bool, False, False),
    (str, "", ""),
]


@each_case(("declared", "given", "expected"), PLAIN)
def test_plain_type_input_is_accepted_as_positional_value_and_as_input_keyword(
    declared: Any, given: Any, expected: Any
) -> None:
    assert call(declared, given).__dict__ == {"input": expected}
    if declared not in (Place, Point):  # A caller passes the fields of these.
        assert call(declared, input=given).__dict__ == {"input": expected}


@each_case("nothing", [[], None, ()])
def test_call_of_module_with_empty_input_schema_creates_empty_input(nothing: Any) -> None:
    assert call(nothing).model_dump() == {}


def test_aliased_field_accepts_name_and_alias() -> None:
    assert call(Renamed, query="a") == call(Renamed, q="a")
    assert call(Renamed, q="a", number=2) == call(Renamed, q="a", n=2)


@each_case(
    ("given", "field", "value"),
    [
        ({"first": 2}, "c", 2),
        ({"second": 2}, "c", 2),
        ({"c": 2}, "c", 2),
        ({"parts": [2, 3]}, "p", 2),
        ({"p": 2}, "p", 2),
        ({"s": 2}, "s", 2),
    ],
)
def test_input_field_with_each_kind_of_pydantic_alias_is_accepted(
    given: dict[str, Any], field: str, value: int
) -> None:
    assert call(Renamed, q="a", **given).__dict__[field] == value


def test_input_with_extra_fields_allowed_accepts_extra_arguments() -> None:
    assert call(Open, q="a", more=1).model_dump() == {"q": "a", "more": 1}
    assert call(OpenAndEmpty, more=1).model_dump() == {"more": 1}
    given = OpenAndEmpty.model_validate({"more": 1})
    assert call(OpenAndEmpty, given) is given


# Invalid arguments

Row = tuple[Any, tuple[Any, ...], dict[str, Any], str]

WRONG: list[Row] = [
    # Missing.
    (Question, (), {}, "`question` is missing (expected a string). It takes `question`, `limit`."),
    (["q", ("n", int)], (), {"q": "a"}, "`n` is missing (expected an integer). It takes `q`, `n`."),
    (str, (), {}, "`input` is missing (expected a string). It takes `input`."),
    (Open, (), {"more": 1}, "`q` is missing (expected a string). It takes `q`."),
    # Invalid.
    (
        Question,
        (),
        {"question": "Why?", "limit": "many"},
        "`limit` must be an integer between 1 and 10, got 'many'. It takes `question`, `limit`.",
    ),
    (
        Survey,
        (),
        {"day": "soon", "questions": []},
        "`day` must be a date as YYYY-MM-DD, got 'soon'. It takes `day`, `questions`, `color`, `notes`.",
    ),
    (
        Survey,
        (),
        {"day": "2024-01-01", "questions": [], "color": "green"},
        '`color` must be one of "red", "blue", got \'green\'. It takes `day`, `questions`, `color`, `notes`.',
    ),
    (
        Survey,
        (),
        {"day": "2024-01-01", "questions": [{"question": "Why?", "limit": "x"}, {"limit": 2}]},
        "`questions.0.limit` must be an integer between 1 and 10, got 'x'; `questions.1.question` is "
        "missing (expected a string). It takes `day`, `questions`, `color`, `notes`.",
    ),
    (
        Survey,
        (),
        {"day": "2024-01-01", "questions": [], "notes": {"first": "Why?"}},
        "`notes.first` must be an object with question, limit, got 'Why?'. "
        "It takes `day`, `questions`, `color`, `notes`.",
    ),
    (Strict, (), {"n": "5"}, "`n` must be an integer, got '5'. It takes `n`."),
    (
        Renamed,
        (),
        {"query": "a", "number": "x"},
        "`number` must be an integer, got 'x'. It takes `q`, `n`, `c`, `p`, `s`.",
    ),
    # A plain type.
    (int, ("x",), {}, "`input` must be an integer, got 'x'. It takes `input`."),
    (list[int], ([1, "x"],), {}, "`input.1` must be an integer, got 'x'. It takes `input`."),
    (list[int], ("x",), {}, "`input` must be a list of integers, got 'x'. It takes `input`."),
    (int | bool, ("x",), {}, "`input` must be an integer or a boolean (true or false), got 'x'. It takes `input`."),
    (Literal["a", "b"], ("c",), {}, '`input` must be one of "a", "b", got \'c\'. It takes `input`.'),
    (Place, ({"y": 1},), {}, "`x` is missing (expected an integer). It takes `x`, `y`."),
    (Point, ({"x": "a"},), {}, "`x` must be an integer, got 'a'. It takes `x`."),
    (Numbers, (["x"],), {}, "`input.0` must be an integer, got 'x'. It takes `input`."),
    # Unknown.
    (Question, (), {"question": "Why?", "depth": 2}, "`depth` is not an input. It takes `question`, `limit`."),
    (Closed, (), {"q": "a", "z": 1}, "`z` is not an input. It takes `q`."),
    (Careless, (), {"q": "a", "z": 1}, "`z` is not an input. It takes `q`."),
    ([], (), {"a": 1, "b": 2}, "`a` is not an input; `b` is not an input. It takes no arguments."),
    (None, (), {"a": 1}, "`a` is not an input. It takes no arguments."),
    (str, (), {"text": "a"}, "`input` is missing (expected a string); `text` is not an input. It takes `input`."),
    (Renamed, (), {"q": "a", "written": 1}, "`written` is not an input. It takes `q`, `n`, `c`, `p`, `s`."),
    # Several at once.
    (
        Question,
        (),
        {"limit": "many", "depth": 2, "width": 3},
        "`question` is missing (expected a string); `limit` must be an integer between 1 and 10, got 'many'; "
        "`depth` is not an input; `width` is not an input. It takes `question`, `limit`.",
    ),
    (Closed, (), {"z": 1}, "`q` is missing (expected a string); `z` is not an input. It takes `q`."),
]

KEYWORDS = (
    "`Agent` takes keyword arguments, such as `question=...`, or one `Question` instance, but got the positional "
)
POSITIONAL: list[Row] = [
    # Positional arguments.
    (Question, ("Why?",), {}, f"{KEYWORDS}`str`."),
    (Question, ({"question": "Why?"},), {}, f"{KEYWORDS}`dict`."),
    (Question, (Lookalike(question="Why?"),), {}, f"{KEYWORDS}`Lookalike`."),
    (Question, (None,), {}, f"{KEYWORDS}`NoneType`."),
    (Question, (Question(question="a"), Question(question="b")), {}, f"{KEYWORDS}`Question`, `Question`."),
    (Question, (Question(question="a"),), {"limit": 3}, f"{KEYWORDS}`Question` and keyword arguments `limit`."),
    (
        ["q"],
        ("a",),
        {},
        "`Agent` takes keyword arguments, such as `q=...`, or one `AgentInput` instance, but got the positional `str`.",
    ),
    ([], ("a",), {}, "`Agent` takes no arguments, but got the positional `str`."),
    ([], (None,), {}, "`Agent` takes no arguments, but got the positional `NoneType`."),
    (str, ("a", "b"), {}, "`Agent` takes one value or `input=...`, but got the positional `str`, `str`."),
    (
        str,
        ("a",),
        {"input": "b"},
        "`Agent` takes one value or `input=...`, but got the positional `str` and keyword arguments `input`.",
    ),
]


@each_case(
    ("declared", "args", "kwargs", "words"),
    [*((*row[:3], f"Wrong input for `Agent`: {row[3]}") for row in WRONG), *POSITIONAL],
)
def test_wrong_input_arguments_raise_error_with_exact_message(
    declared: Any, args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    assert complaint(declared, *args, **kwargs) == words


def test_input_error_is_acorn_error_and_value_error() -> None:
    with pytest.raises(AcornError) as caught:
        call(Question)
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value.__cause__, ValidationError)


def test_problems_of_input_error_contain_path_and_received_value() -> None:
    with pytest.raises(InputError) as caught:
        call(Survey, day="soon", questions=[{}], depth=3)
    error = caught.value
    assert error.problems == [
        {
            "path": "day",
            "expected": "date as YYYY-MM-DD",
            "received": "'soon'",
            "message": "`day` must be a date as YYYY-MM-DD, got 'soon'",
        },
        {
            "path": "questions.0.question",
            "expected": "string",
            "received": "missing",
            "message": "`questions.0.question` is missing (expected a string)",
        },
        {"path": "depth", "expected": "no such input", "received": "3", "message": "`depth` is not an input"},
    ]
    assert all(problem["message"] in str(error) for problem in error.problems)
    assert pickle.loads(pickle.dumps(error)).problems == error.problems


def test_problems_of_input_error_describe_wrong_arguments_wrong_history_and_missing_deps() -> None:
    class Agent(module[str, str, int]):
        pass

    with pytest.raises(InputError) as caught:
        Agent().using(deps=1).run("a", "b")
    assert [(wrong["path"], wrong["received"]) for wrong in caught.value.problems] == [("", "('a', 'b')")]
    with pytest.raises(InputError) as caught:
        Agent().using(history=[5])
    assert [(wrong["path"], wrong["received"]) for wrong in caught.value.problems] == [("history[0]", "5")]
    with pytest.raises(InputError) as caught:
        Agent().run("a")
    assert [(wrong["path"], wrong["received"]) for wrong in caught.value.problems] == [("deps", "missing")]


@each_case("option", ["history", "deps", "temperature", "model"])
def test_option_passed_as_input_argument_raises_error_that_suggests_using(option: str) -> None:
    class Chat(module[Question, str]):
        pass

    with pytest.raises(InputError) as caught:
        Chat().run(question="Why?", **{option: []})
    assert str(caught.value) == (
        f"Wrong input for `Chat`: `{option}` is not an input, but an option: `agent.using({option}=...)(...)`. "
        f"It takes `question`, `limit`."
    )


class Anything(BaseModel):
    data: Any = None
    more: list[Any] = []


class Speaking:
    def __repr__(self) -> str:
        return "I speak"


@dataclasses.dataclass
class Held:
    thing: Any


def _generated() -> Any:
    yield 1


@each_case(
    ("given", "path", "kind"),
    [
        ({"data": object()}, "data", "object"),
        ({"data": {"a": [1, object()]}}, "data.a.1", "object"),
        ({"more": [Held(object())]}, "more.0.thing", "object"),
        ({"data": {object(): 1}}, "data.<object>", "object"),
        ({"data": _generated}, "data", "function"),
        ({"data": Anything(data=object())}, "data.data", "object"),
        ({"data": [b"\xff", object()]}, "data.1", "object"),
    ],
)
def test_input_object_with_default_repr_raises_input_error(given: dict[str, Any], path: str, kind: str) -> None:
    class Agent(module[Anything, str]):
        pass

    model = ScriptedModel([])
    with pytest.raises(InputError) as caught:
        Agent(model=model).run(**given)
    assert f"`{path}` is an instance of `{kind}`" in str(caught.value)
    assert [wrong["path"] for wrong in caught.value.problems] == [path]
    assert model.requests == []


def test_input_object_with_custom_repr_is_sent_as_repr() -> None:
    class Agent(module[Anything, str]):
        pass

    model = ScriptedModel([finish(result="a")])
    Agent(model=model).run(data=Speaking(), more=[Held(Speaking()), Color.RED])
    assert str(model.requests[0].messages[-1]["content"]).count("I speak") == 2


def test_input_error_contains_name_of_called_module() -> None:
    class Researcher(module):
        initial_input = Question

    with pytest.raises(InputError, match=r"^Wrong input for `Researcher`: "):
        spec_of(Researcher()).input.from_call("Researcher", (), {})


def test_missing_field_with_alias_is_reported_under_name_that_call_accepts() -> None:
    words = complaint(Renamed)
    assert words.startswith(("Wrong input for `Agent`: `query` is missing", "Wrong input for `Agent`: `q` is missing"))
    assert "(expected a string)" in words


def test_wrong_value_passed_under_field_name_is_reported_under_field_name_instead_of_alias() -> None:
    assert complaint(Renamed, q="a", n="x").startswith("Wrong input for `Agent`: `n` must be an integer, got 'x'.")


def test_argument_whose_value_is_text_missing_is_not_reported_as_missing() -> None:
    words = complaint(Question, question="Why?", limit="missing")
    assert "`limit` must be an integer between 1 and 10, got " in words
    assert "is missing" not in words


@each_case(("given", "quoted"), [(5, "'5'"), (None, "'null'"), (True, "'true'")])
def test_non_string_value_is_not_quoted_in_message(given: Any, quoted: str) -> None:
    assert quoted not in complaint(Question, question=given)


def test_user_validator_message_is_in_input_error() -> None:
    assert "thirteen is unlucky" in complaint(Span, low=13, high=20)
    assert "low is above high" in complaint(Span, low=3, high=2)


def test_user_validator_message_is_formatted_as_sentence() -> None:
    assert "must be thirteen is unlucky" not in complaint(Span, low=13, high=20)
    assert "must be low is above high" not in complaint(Span, low=3, high=2)


def test_long_value_is_shortened_in_message() -> None:
    words = complaint(Question, question="Why?", limit="x" * 5000)
    assert len(words) < 400
    assert "x…" in words


def test_input_value_whose_repr_raises_is_reported_by_class_name() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "<Broken without a repr>" in complaint(Question, question=Broken())


def test_wrong_call_does_not_affect_next_call() -> None:
    agent = type("Agent", (module,), {"__module__": __name__, "initial_input": Question})()
    shape = spec_of(agent).input
    kwargs = {"question": "Why?", "depth": 2}
    with pytest.raises(InputError):
        shape.from_call("Agent", (), kwargs)
    assert kwargs == {"question": "Why?", "depth": 2}
    assert shape.from_call("Agent", (), {"question": "Why?"}) == Question(question="Why?")


def test_input_schema_with_undefined_class_raises_declaration_error() -> None:
    page: Any = ("Page", ...)
    Chapter = create_model("Chapter", page=page)
    with pytest.raises(DeclarationError, match="Page"):
        call(Chapter, page={"number": 1})

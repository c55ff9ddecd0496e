"""Tests of the declarations and tools in the seed documents, executed verbatim, and of the documented behavior.

The tests add names that a seed leaves to the reader, such as `read_file` and `results`.
"""

import enum
import inspect
import textwrap
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import pytest
from pydantic import BaseModel, Field
from tests.cases import each_case

from acorn import DeclarationError, ToolConflictError, module, tool
from acorn._declare.spec import Spec, read_prompt_file
from acorn._declare.spec_cache import spec_of
from acorn._declare.tools.kinds import Tool


def run(snippet: str, **names: Any) -> Any:
    """Execute a snippet as a file; `module`, `tool`, `BaseModel` and `Field` are available."""
    space = ModuleType("snippet")
    vars(space).update({"module": module, "tool": tool, "BaseModel": BaseModel, "Field": Field, **names})
    exec(textwrap.dedent(snippet), vars(space))
    return space


def spec(snippet: str, **names: Any) -> Spec:
    """Return the spec of the snippet's `MyAgent`."""
    return spec_of(run(snippet, **names).MyAgent())


def the_tool(function: Callable[..., Any]) -> Tool:
    """Return the tool that a module makes of one function."""
    (found,) = spec_of(type("MyAgent", (module,), {"__module__": __name__, "tools": [function]})()).tools
    return found


def call(found: Tool, arguments: str) -> Any:
    args, kwargs = found.bind(arguments)
    return found.function(*args, **kwargs)


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return path


@tool
def calculate(expression: str) -> float:
    """Evaluate a math expression."""
    return float(expression)


# core-concepts.md, Module


def test_specification_basic_module_structure_compiles_to_documented_settings() -> None:
    found = spec(
        """
        from acorn import module

        class MyAgent(module):
            # Model configuration
            model = "anthropic/claude-sonnet-4-5-20250514"
            temperature = 0.7
            max_tokens = 4096

            # Input/Output schemas
            initial_input = ["question"]
            final_output = ["answer"]

            # Tools available to the agent
            tools = [calculate]

            # Optional: branches this module can spawn
            branches = {}

            # Optional: caching configuration
            cache = [{"location": "message", "role": "system"}]

            # Lifecycle hooks
            def on_step(self, step):
                ...

            def on_stream(self, chunk):
                ...
        """,
        calculate=calculate,
    )
    assert (found.model, found.temperature, found.max_tokens) == ("anthropic/claude-sonnet-4-5-20250514", 0.7, 4096)
    assert list(found.input.schema.model_fields) == ["question"]
    assert list(found.output.schema.model_fields) == ["answer"]
    assert [one.name for one in found.tools] == ["calculate"]


@each_case("line", ["initial_input = [...]", "final_output = [...]", "tools = [...]", "cache = [...]"])
def test_specification_basic_structure_with_ellipsis_values_raises_declaration_error(line: str) -> None:
    with pytest.raises(DeclarationError, match=r"^`MyAgent\.\w+(\[0\])?` must be .*, got .*Ellipsis"):
        run(f"class MyAgent(module):\n    {line}")


# core-concepts.md, Model Configuration


@each_case(
    "line", ['model = "anthropic/claude-sonnet-4-5-20250514"', 'model = "openai/gpt-4o"', 'model = "ollama/llama3"']
)
def test_specification_model_identifiers_are_accepted(line: str) -> None:
    assert spec(f"class MyAgent(module):\n    {line}").model in line


def test_specification_model_dict_is_accepted() -> None:
    found = spec(
        """
        class MyAgent(module):
            model = {
                "model": "anthropic/claude-sonnet-4-5-20250514",
                "api_key": "...",
                "base_url": "..."
            }
        """
    )
    assert found.model == {"model": "anthropic/claude-sonnet-4-5-20250514", "api_key": "...", "base_url": "..."}


def test_specification_temperature_outside_range_raises_declaration_error() -> None:
    assert spec("class MyAgent(module):\n    temperature = 0.7").temperature == 0.7
    for outside in ("-0.1", "2.1"):
        with pytest.raises(DeclarationError, match=r"`MyAgent\.temperature`"):
            run(f"class MyAgent(module):\n    temperature = {outside}")


@each_case(
    ("lines", "attribute", "value"),
    [
        ("max_tokens = 4096", "max_tokens", 4096),
        ("max_steps = None  # Default - single turn", "max_steps", None),
        ("max_steps = 10    # Agentic loop, up to 10 steps", "max_steps", 10),
        ("parse_retries = 3", "parse_retries", 3),
    ],
)
def test_specification_other_settings_are_stored_in_compiled_spec(lines: str, attribute: str, value: Any) -> None:
    assert getattr(spec(f"class MyAgent(module):\n    {lines}"), attribute) == value


def test_specification_defaults_of_max_steps_and_parse_retries_are_used() -> None:
    found = spec("class MyAgent(module):\n    pass")
    assert found.max_steps is None  # "Default: `None` (single-turn mode)."
    assert found.parse_retries == 2  # "Default: 2."


# core-concepts.md, System Prompt

GUIDELINES = "You are a helpful research assistant.\n\n## Guidelines\n- Be concise\n- Cite sources"


def test_specification_docstring_is_used_as_system_prompt() -> None:
    found = spec(
        '''
        class MyAgent(module):
            """
            You are a helpful research assistant.

            ## Guidelines
            - Be concise
            - Cite sources
            """
            # The docstring above becomes the system_prompt
        '''
    )
    assert found.prompt.text == GUIDELINES


def test_specification_system_prompt_replaces_docstring() -> None:
    found = spec(
        '''
        class MyAgent(module):
            """This docstring is ignored when system_prompt is set."""

            system_prompt = """
            You are a helpful research assistant.

            ## Guidelines
            - Be concise
            - Cite sources
            """
        '''
    )
    assert found.prompt.text == GUIDELINES


def test_specification_system_prompt_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "researcher.md").write_text("You are a researcher.\n")
    monkeypatch.chdir(tmp_path)
    found = spec(
        """
        from pathlib import Path

        class MyAgent(module):
            system_prompt = Path("prompts/researcher.md")
        """
    )
    assert found.prompt.file is not None
    assert read_prompt_file(found.prompt.file, "MyAgent") == "You are a researcher.\n"


def test_specification_system_prompt_method_is_called() -> None:
    agent = run(
        '''
        from datetime import date

        class MyAgent(module):
            def system_prompt(self):
                return f"""
                You are a helpful assistant.
                Today's date is {date.today()}.
                """
        '''
    ).MyAgent()
    assert spec_of(agent).prompt.is_method
    assert inspect.cleandoc(agent.system_prompt()).startswith(
        f"You are a helpful assistant.\nToday's date is {date.today():%Y}-"
    )


# core-concepts.md, Input/Output Schemas


def test_specification_initial_input_defines_call_arguments() -> None:
    found = spec(
        """
        from pydantic import BaseModel, Field

        class QuestionInput(BaseModel):
            question: str = Field(description="The question to answer")
            context: str | None = Field(default=None, description="Optional context")

        class MyAgent(module):
            initial_input = QuestionInput
        """
    )
    given = found.input.from_call("MyAgent", (), {"question": "What is the capital of France?"})
    assert given.model_dump() == {"question": "What is the capital of France?", "context": None}
    assert type(given).__name__ == "QuestionInput"


def test_specification_final_output_defines_finish_arguments() -> None:
    found = spec(
        """
        from pydantic import BaseModel, Field

        class AnswerOutput(BaseModel):
            answer: str = Field(description="The answer to the question")
            confidence: float = Field(description="Confidence score 0-1")
            sources: list[str] = Field(description="Sources used")

        class MyAgent(module):
            final_output = AnswerOutput
        """
    )
    assert found.output.json_schema == {
        "type": "object",
        "properties": {
            "answer": {"type": "string", "description": "The answer to the question"},
            "confidence": {"type": "number", "description": "Confidence score 0-1"},
            "sources": {"type": "array", "items": {"type": "string"}, "description": "Sources used"},
        },
        "required": ["answer", "confidence", "sources"],
    }
    # __finish__(answer="Paris", confidence=0.95, sources=["wikipedia.org"])
    answer = found.output.schema(answer="Paris", confidence=0.95, sources=["wikipedia.org"])
    assert found.output.unwrap(answer) is answer


# core-concepts.md, Tools

SEARCH_WEB = '''
from acorn import tool

@tool
def search_web(query: str, max_results: int = 5) -> list[dict]:
    """
    Search the web for information.

    Args:
        query: The search query
        max_results: Maximum number of results to return

    Returns:
        List of search results with title, url, and snippet
    """
    # implementation
    return results
'''


@pytest.fixture
def search_web() -> Any:
    return run(SEARCH_WEB, results=[{"title": "Acorns"}]).search_web


def test_specification_decorated_tool_is_callable_as_function(search_web: Any) -> None:
    assert inspect.isfunction(search_web)
    assert search_web("acorns") == [{"title": "Acorns"}]


def test_specification_tool_schema_is_derived_from_signature_and_docstring(search_web: Any) -> None:
    assert the_tool(search_web).schema == {
        "name": "search_web",
        "description": "Search the web for information.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "The search query"},
                "max_results": {"type": "integer", "default": 5, "description": "Maximum number of results to return"},
            },
            "required": ["query"],
        },
    }


def test_specification_tools_of_class_attribute_are_listed(search_web: Any) -> None:
    found = spec(
        """
        class MyAgent(module):
            tools = [search_web, read_file, calculate]
        """,
        search_web=search_web,
        read_file=read_file,
        calculate=calculate,
    )
    assert [one.name for one in found.tools] == ["search_web", "read_file", "calculate"]


OPTION_2 = '''
class MyAgent(module):
    @tool
    def search_web(self, query: str, max_results: int = 5) -> list[dict]:
        """Search the web for information."""
        # implementation - has access to self
        return results

    @tool
    def calculate(self, expression: str) -> float:
        """Evaluate a math expression."""
        return eval(expression)
'''


def test_specification_tools_of_decorated_methods_are_listed() -> None:
    found = spec(OPTION_2, results=[])
    assert [one.name for one in found.tools] == ["search_web", "calculate"]
    assert [one.schema["description"] for one in found.tools] == [
        "Search the web for information.",
        "Evaluate a math expression.",
    ]


def test_specification_method_tool_schema_excludes_self() -> None:
    search_web, calculate = spec(OPTION_2, results=[]).tools
    assert search_web.schema["parameters"] == {
        "type": "object",
        "properties": {"query": {"type": "string"}, "max_results": {"type": "integer", "default": 5}},
        "required": ["query"],
    }
    assert list(calculate.schema["parameters"]["properties"]) == ["expression"]


def test_specification_method_tool_accepts_arguments_of_model() -> None:
    agent = run(OPTION_2, results=["found"]).MyAgent()
    search_web, calculate = (one.bound_to(agent) for one in spec_of(agent).tools)
    assert call(search_web, '{"query": "acorns"}') == ["found"]
    assert call(calculate, '{"expression": "1 + 1"}') == 2
    assert list(search_web.schema["parameters"]["properties"]) == ["query", "max_results"]


def test_specification_attribute_tools_and_method_tools_are_both_listed() -> None:
    agent = run(
        '''
        class MyAgent(module):
            tools = [external_api_tool]  # External tools

            @tool
            def internal_tool(self, data: str) -> str:
                """Tool with access to module state."""
                return self.process(data)

            def process(self, data):
                return data.upper()
        ''',
        external_api_tool=tool(name="external_api_tool")(lambda: "external"),
    ).MyAgent()
    tools = spec_of(agent).tools
    assert [one.name for one in tools] == ["external_api_tool", "internal_tool"]
    assert call(tools[0].bound_to(agent), "{}") == "external"
    assert call(tools[1].bound_to(agent), '{"data": "acorn"}') == "ACORN"


# core-concepts.md, Caching


def test_specification_cache_setting_selects_system_message_and_first_user_message() -> None:
    snippet = """
        class MyAgent(module):
            cache = [
                {
                    "location": "message",
                    "role": "system",
                },
                {
                    "location": "message",
                    "index": 0,
                }
            ]
        """
    points = ({"location": "message", "role": "system"}, {"location": "message", "index": 0})
    assert spec(snippet).cache == points
    assert spec("class MyAgent(module):\n    cache = True").cache == points


# api-reference.md, @tool Decorator


def test_specification_standalone_function_tool_has_documented_schema() -> None:
    found = the_tool(
        run(
            '''
            from acorn import tool

            @tool
            def search_web(query: str, max_results: int = 5) -> list[dict]:
                """
                Search the web for information.

                Args:
                    query: The search query
                    max_results: Maximum results to return
                """
                return [...]
            '''
        ).search_web
    )
    assert found.schema["description"] == "Search the web for information."
    assert {name: one["description"] for name, one in found.schema["parameters"]["properties"].items()} == {
        "query": "The search query",
        "max_results": "Maximum results to return",
    }
    assert call(found, '{"query": "acorns"}') == [...]


def test_specification_method_tool_has_documented_parameters() -> None:
    (found,) = spec(
        '''
        class MyAgent(module):
            @tool
            def search_web(self, query: str, max_results: int = 5) -> list[dict]:
                """Search the web for information."""
                # Has access to self (module instance)
                return [...]
        '''
    ).tools
    assert list(found.schema["parameters"]["properties"]) == ["query", "max_results"]


class Filters(BaseModel):
    language: str = "en"
    year: int


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


SUPPORTED: list[tuple[Any, str, Any, dict[str, Any]]] = [
    (str, '"a"', "a", {"type": "string"}),
    (int, "5", 5, {"type": "integer"}),
    (float, "0.5", 0.5, {"type": "number"}),
    (bool, "true", True, {"type": "boolean"}),
    (list[str], '["a"]', ["a"], {"type": "array", "items": {"type": "string"}}),
    (list[int], '["1"]', [1], {"type": "array", "items": {"type": "integer"}}),
    (dict[str, int], '{"a": 1}', {"a": 1}, {"type": "object", "additionalProperties": {"type": "integer"}}),
    (Optional[int], "null", None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045 - as quoted
    (str | None, "null", None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    (str | None, '"a"', "a", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    (Filters, '{"year": "1990"}', Filters(year=1990), {"$ref": "#/$defs/Filters"}),
    (Mode, '"fast"', Mode.FAST, {"$ref": "#/$defs/Mode"}),
    (list[Filters], '[{"year": 1}]', [Filters(year=1)], {"type": "array", "items": {"$ref": "#/$defs/Filters"}}),
]


@each_case(("kind", "sent", "received", "schema"), SUPPORTED)
def test_specification_supported_types_have_documented_schema_and_conversion(
    kind: Any, sent: str, received: Any, schema: Any
) -> None:
    def take(value: Any) -> Any:
        return value

    take.__annotations__["value"] = kind
    found = the_tool(take)
    assert found.schema["parameters"]["properties"]["value"] == schema
    assert call(found, f'{{"value": {sent}}}') == received


def test_specification_schemas_of_classes_and_enums_have_no_generated_titles() -> None:
    def take(filters: Filters, mode: Mode) -> None: ...

    assert the_tool(take).schema["parameters"]["$defs"] == {
        "Filters": {
            "type": "object",
            "properties": {"language": {"type": "string", "default": "en"}, "year": {"type": "integer"}},
            "required": ["year"],
        },
        "Mode": {"type": "string", "enum": ["fast", "slow"]},
    }


# api-reference.md, Exceptions


def test_specification_tool_name_conflict_raises_error_with_documented_message() -> None:
    @tool
    def search(query: str) -> str:
        return query

    with pytest.raises(ToolConflictError) as caught:
        run(
            """
            class BadAgent(module):
                tools = [search]  # Has a tool named "search"

                @tool
                def search(self, query: str) -> str:  # Conflict!
                    ...
            """,
            search=search,
        )
    assert str(caught.value) == "Tool 'search' defined in both tools attribute and as method"
    assert type(caught.value).__name__ == "ToolConflictError"


# api-reference.md, Branches

BRANCHES = '''
class AnalysisResult(BaseModel):
    patterns: list[str]

class AnalysisBranch(module):
    """
    Analyze the data discussed in the conversation.
    Focus on patterns and anomalies.
    """
    # Docstring = additional prompt appended to parent's

    tools = [statistical_analysis]  # Added to parent's tools
    final_output = AnalysisResult    # Required
    # No initial_input - context from inherited history

class VerifyBranch(AnalysisBranch):
    pass

class MainAgent(module):
    branches = {
        "analyze": AnalysisBranch,
        "verify": VerifyBranch,
    }
    # Generates tools: analyze(), verify()
'''


def test_specification_branch_has_prompt_tools_and_output() -> None:
    space = run(BRANCHES, statistical_analysis=calculate)
    found = spec_of(space.AnalysisBranch())
    assert found.prompt.text == "Analyze the data discussed in the conversation.\nFocus on patterns and anomalies."
    assert [one.name for one in found.tools] == ["calculate"]
    assert found.output.schema is space.AnalysisResult
    assert found.input.is_empty


def test_specification_branches_are_registered_by_name() -> None:
    space = run(BRANCHES, statistical_analysis=calculate)
    assert spec_of(space.MainAgent()).branches == {"analyze": space.AnalysisBranch, "verify": space.VerifyBranch}


def test_specification_branch_description_is_accepted() -> None:
    space = run(
        BRANCHES
        + """
class Described(module):
    branches = {
        "analyze": {
            "module": AnalysisBranch,
            "description": "Deep statistical analysis of discussed data",
        },
    }
""",
        statistical_analysis=calculate,
    )
    assert spec_of(space.Described()).branches["analyze"] == {
        "module": space.AnalysisBranch,
        "description": "Deep statistical analysis of discussed data",
    }


def test_specification_branch_without_final_output_raises_declaration_error() -> None:
    with pytest.raises(DeclarationError, match="which has no `final_output`"):
        run('class A(module):\n    "No output."\n\nclass B(module):\n    branches = {"a": A}')


# api-reference.md, Full Example

FULL_EXAMPLE = '''
from acorn import module, tool
from pydantic import BaseModel, Field
from pathlib import Path

# --- Tools ---

@tool
def search(query: str, limit: int = 5) -> list[str]:
    """Search for information online."""
    return ["result1", "result2"]

@tool
def calculate(expression: str) -> float:
    """Evaluate a mathematical expression."""
    return eval(expression)

# --- Branch ---

class FactCheckOutput(BaseModel):
    is_true: bool
    evidence: list[str]
    confidence: float

class FactChecker(module):
    """
    Verify claims discussed in the conversation.
    Search for evidence and assess truthfulness.
    """
    # Docstring = additional prompt appended to parent's system_prompt
    # No initial_input - context comes from inherited history

    temperature = 0.1
    max_steps = 5
    final_output = FactCheckOutput
    tools = [search]  # Added to parent's tools

# --- Main Agent ---

class QuestionInput(BaseModel):
    question: str = Field(description="Question to answer")

class AnswerOutput(BaseModel):
    answer: str
    confidence: float
    sources: list[str]

class ResearchAgent(module):
    """
    You are a research assistant. Answer questions thoroughly.
    Use fact_check when you need to verify important claims.
    """
    # Docstring used as system_prompt

    model = "anthropic/claude-sonnet-4-5-20250514"
    temperature = 0.7
    max_tokens = 4096
    max_steps = 15
    parse_retries = 2

    initial_input = QuestionInput
    final_output = AnswerOutput

    tools = [search, calculate]
    branches = {"fact_check": FactChecker}
    # fact_check() tool auto-generated with no parameters
    # When called, FactChecker inherits:
    #   - System prompt: ResearchAgent's docstring + FactChecker's docstring
    #   - Tools: [search, calculate, search, __finish__] (merged)
    #   - History: Full parent history

    cache = [
        {"location": "message", "role": "system"},
    ]

    def on_step(self, step):
        print(f"[Step {step.counter}] Tools called: {[t.name for t in step.tool_calls]}")

        # Reduce temperature after step 10
        if step.counter > 10:
            step.temperature = 0.3

        # Mutate tool results before next model call
        for result in step.tool_results:
            if len(str(result.output)) > 5000:
                result.output = str(result.output)[:5000] + "..."

        return step

    def on_stream(self, chunk):
        if chunk.content:
            print(chunk.content, end="", flush=True)
'''


def test_specification_full_example_compiles_to_documented_settings() -> None:
    space = run(FULL_EXAMPLE)
    found = spec_of(space.ResearchAgent())
    assert found.owner == "ResearchAgent"
    assert found.prompt.text == (
        "You are a research assistant. Answer questions thoroughly.\n"
        "Use fact_check when you need to verify important claims."
    )
    assert (found.model, found.temperature) == ("anthropic/claude-sonnet-4-5-20250514", 0.7)
    assert (found.max_tokens, found.max_steps, found.parse_retries) == (4096, 15, 2)
    assert (found.input.schema, found.output.schema) == (space.QuestionInput, space.AnswerOutput)
    assert [one.name for one in found.tools] == ["search", "calculate"]
    assert found.branches == {"fact_check": space.FactChecker}
    assert found.cache == ({"location": "message", "role": "system"},)
    assert repr(space.ResearchAgent()) == "<ResearchAgent model='anthropic/claude-sonnet-4-5-20250514'>"


def test_specification_full_example_branch_compiles_to_documented_settings() -> None:
    space = run(FULL_EXAMPLE)
    found = spec_of(space.FactChecker())
    assert (found.temperature, found.max_steps, found.model) == (0.1, 5, None)
    assert found.declared == {"temperature", "max_steps", "final_output", "tools"}
    assert found.output.schema is space.FactCheckOutput
    assert [one.function for one in found.tools] == [space.search]


def test_specification_full_example_tools_return_results() -> None:
    search, calculate = spec_of(run(FULL_EXAMPLE).ResearchAgent()).tools
    assert call(search, '{"query": "python"}') == ["result1", "result2"]
    assert call(calculate, '{"expression": "2 * 21"}') == 42

"""The plan of the house: imports point down, public names are decided, `import acorn` stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import acorn

SOURCE = Path(acorn.__file__).parent
ROOMS = sorted(path.relative_to(SOURCE).with_suffix("").as_posix() for path in SOURCE.rglob("*.py"))

# The longest prefix counts. A new room needs a floor here.
FLOORS = {
    "errors": 0,
    "types": 0,
    "_secrets": 0,
    "_log": 0,
    "_startup": 0,
    "_waiting": 0,
    "_json": 1,
    "_data": 1,
    "_content": 1,
    "media": 1,
    "_schema": 1,
    "_xml": 1,
    "_partial": 1,
    "_grammar": 1,
    "partial": 1,
    "record": 2,
    "journal": 2,
    "_history": 2,
    "_history_book": 2,
    "_record_json": 2,
    "_record_html": 2,
    "thread": 2,
    "models/__init__": 2,
    "models/port": 2,
    "models/sent": 2,
    "models/sent_media": 2,
    "models/assemble": 2,
    "stores/port": 2,
    "_tools": 3,
    "_sampling": 3,
    "_rate_limit": 3,
    "_settings": 3,
    "_spec": 3,
    "_brackets": 3,
    "_declared": 3,
    "_override": 3,
    "step": 4,
    "chunk": 4,
    "_loop": 4,
    "models": 5,
    "testing": 5,
    "stores": 5,
    "_telemetry": 5,
    "_drive": 6,
    "_module": 7,
    "_batch": 7,
    "_planning": 7,
    "_beginning": 7,
    "_queueing": 7,
    "_queued_batch": 7,
    "_handle": 7,
    "_call": 7,
    "_runs": 7,
    "_explaining": 7,
    "__init__": 7,
    "mcp": 8,
    "__main__": 8,
    "cli": 8,
    "web": 8,
    "durable": 8,
}

# Imports inside functions: optional or heavy outside packages, in the one room that needs them.
LATE_IMPORTS = {
    ("_tools/docs", "docstring_parser"),
    ("_tools/by_schema", "jsonschema"),
    ("_tools/by_schema", "referencing"),
    ("__init__", "importlib"),
    ("_startup", "signal"),
    (
        "_module",
        "acorn",
    ),  # the machinery of a call: the drivers bring asyncio, which a program that only declares does not need
    ("_call", "acorn"),  # the events' classes, for runs that are forked
    ("record", "acorn"),  # the events' classes, which a run that nobody looks at does not need
    ("_loop/conversation", "acorn"),  # the same, for runs that send their thread
    ("_loop/compaction", "acorn"),  # the same, for runs that are summed up
    ("models/weights", "platformdirs"),
    ("models/transport_async", "aiohttp"),
    ("models/litellm/library", "litellm"),
    ("models/litellm/async_client", "aiohttp"),
    ("models/litellm/async_client", "httpx"),
    ("models/litellm/async_client", "yarl"),
    ("models/litellm/adapter", "httpx"),
    ("models/litellm/failure", "httpx"),
    ("models/litellm/raw_stream", "httpx"),
    ("testing/scripted", "asyncio"),
    ("cli/commands/work", "acorn"),  # the engine, which is an extra
    ("_telemetry/switch", "acorn"),  # what makes spans, with OpenTelemetry, which a program may not have
    ("mcp/address", "mcp"),
    ("mcp/address", "httpx2"),
    ("mcp/connection", "mcp"),
    ("mcp/connection", "mcp_types"),
    ("mcp/people", "jsonschema"),
    ("mcp/people", "referencing"),
    ("mcp/process", "anyio"),
    ("mcp/process", "mcp"),
    ("mcp/process", "mcp_types"),
    ("mcp/veil", "mcp_types"),
    ("mcp/server", "jsonschema"),
    ("mcp/server", "mcp"),
    ("mcp/server", "uvicorn"),
    ("cli/commands/mcp", "acorn"),  # which brings the drivers, for one command of many
    ("cli/commands/web", "acorn"),  # the server, which no other command needs
    ("cli/commands/serve", "acorn"),  # the same
    ("cli/commands/show", "acorn"),  # the page, for one form of many
}

PUBLIC = [
    "AcornError",
    "Audio",
    "BranchError",
    "DeclarationError",
    "File",
    "Image",
    "InputError",
    "LimitError",
    "ModelError",
    "Module",
    "ParseError",
    "Partial",
    "Paused",
    "Request",
    "Run",
    "Step",
    "StoreError",
    "StreamChunk",
    "ToolCall",
    "ToolConflictError",
    "ToolResult",
    "Unfinished",
    "Usage",
    "ask_human",
    "capture",
    "current_run",
    "listen",
    "module",
    "runs",
    "tool",
]


def floor(room: str) -> int:
    fitting = [prefix for prefix in FLOORS if room == prefix or room.startswith(prefix + "/")]
    assert fitting, f"{room} stands on no floor; give it one in FLOORS"
    return FLOORS[max(fitting, key=len)]


@cache
def tree_of(room: str) -> ast.Module:
    return ast.parse((SOURCE / f"{room}.py").read_text(encoding="utf-8"))


@cache
def imports(room: str) -> list[tuple[str, bool]]:
    """Every imported module, and whether the import stands inside a function."""
    tree = tree_of(room)
    inside = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(outer)
    }
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{room} imports relatively; the house writes whole names"
            found.append((node.module or "", id(node) in inside))
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_its_floor_or_below(room: str) -> None:
    for name, _ in imports(room):
        if name == "acorn" or name.startswith("acorn."):
            target = name.removeprefix("acorn").removeprefix(".").replace(".", "/") or "__init__"
            target = f"{target}/__init__" if (SOURCE / target / "__init__.py").exists() else target
            assert floor(target) <= floor(room), f"{room} (floor {floor(room)}) imports {name} above it"


def rooms_imported(room: str) -> list[str]:
    """The rooms that a room needs by any way: at the top, inside a function, for types only, or by a name in quotes."""
    tree = tree_of(room)
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            names += [name if room_of(name) else str(node.module) for name in whole.values()]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # The name of a package in quotes is where its data lies: `files("acorn.cli")`.
            names += [node.value] if not (room_of(node.value) or "__init__").endswith("__init__") else []
    return [found for name in dict.fromkeys(names) if (found := room_of(name)) and found != room]


def room_of(name: str) -> str | None:
    """`acorn._loop.run` as `_loop/run`; None where there is no such file."""
    path = name.removeprefix("acorn").removeprefix(".").replace(".", "/")
    fitting = [path, f"{path}/__init__".removeprefix("/")] if name.partition(".")[0] == "acorn" else []
    return next((room for room in fitting if room in ROOMS), None)


def cycle_in(graph: dict[str, list[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_cycle_of_imports_exists_not_even_a_hidden_one() -> None:
    found = cycle_in({room: rooms_imported(room) for room in ROOMS})
    assert not found, f"imports go in a circle: {' <- '.join(found)}; move what two rooms need into one below both"


@pytest.mark.parametrize("room", ROOMS)
def test_imports_stand_at_the_top_of_the_file(room: str) -> None:
    for name, is_inside in imports(room):
        if is_inside:
            assert (room, name.partition(".")[0]) in LATE_IMPORTS, f"{room} imports {name} inside a function"


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_what_it_is_for(room: str) -> None:
    assert ast.get_docstring(tree_of(room))


def test_the_public_names_are_decided() -> None:
    assert sorted(acorn.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(acorn, name) is not None


def test_no_file_carries_the_name_of_a_public_object() -> None:
    for room in ROOMS:
        assert room not in PUBLIC, f"`import acorn.{room}` would hide the public `{room}`"


def test_module_has_two_names_and_is_one_class() -> None:
    assert acorn.Module is acorn.module


def test_import_acorn_loads_nothing_heavy() -> None:
    heavy = [
        "litellm",
        "sqlite3",
        "openai",
        "httpx",
        "rich",
        "typer",
        "starlette",
        "uvicorn",
        "opentelemetry",
        "mcp",
        "docstring_parser",
        "jsonschema",
        "referencing",
        "asyncio",
        "logging",
        "xllamacpp",
    ]
    script = f"import sys, acorn; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_is_marked_as_typed() -> None:
    assert (SOURCE / "py.typed").exists()

"""Tests of the package structure: imports point down, surfaces use only public modules, and `import acorn` is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import acorn

SOURCE = Path(acorn.__file__).parent
FILES = sorted(path.relative_to(SOURCE).with_suffix("").as_posix() for path in SOURCE.rglob("*.py"))
KNOWN_FILES = frozenset(FILES)

# The layers, lowest first. A file belongs to the layer with the longest matching prefix.
LAYERS: list[tuple[str, list[str]]] = [
    ("base", ["_base", "errors", "types"]),
    ("formats", ["_formats", "media"]),
    (
        "ports and records",
        [
            "record",
            "journal",
            "thread",
            "models/__init__",
            "models/port",
            "models/request",
            "models/assemble",
            "stores/port",
            "_history/history",
            "_history/saved_form",
        ],
    ),
    ("declaration", ["_declare"]),
    ("machine", ["step", "chunk", "_history", "_machine"]),
    ("adapters", ["models", "stores", "_telemetry"]),
    ("drivers", ["_drive"]),
    ("calls", ["_call", "_module", "__init__"]),
    ("inside", ["_inside"]),
    ("surfaces", ["cli", "web", "mcp", "durable", "testing", "__main__"]),
]
SURFACES = ("cli", "web", "mcp", "durable", "testing")
LEVEL = {prefix: level for level, (_, prefixes) in enumerate(LAYERS) for prefix in prefixes}

# Imports inside functions: optional or heavy packages, each in the file that needs it.
LATE_IMPORTS = {
    ("_base/clock", "asyncio"),  # A program that only declares classes does not wait.
    ("_declare/tools/collect", "docstring_parser"),
    ("_formats/schema/patterns", "jsonschema"),
    ("_formats/schema/patterns", "referencing"),
    ("_declare/tools/arguments", "jsonschema"),
    ("_declare/tools/arguments", "referencing"),
    ("_module", "acorn"),  # The code of a call loads asyncio, which a program that only declares classes does not need.
    ("_call/call", "acorn"),  # The event classes, for forked runs.
    ("record", "acorn"),  # The event classes, for runs whose thread is read.
    ("_machine/requests", "acorn"),  # The event classes, for runs that send their thread.
    ("_history/compaction", "acorn"),  # The event classes, for runs that are summarized.
    ("models/local/download", "platformdirs"),
    ("models/lanes/http_async", "aiohttp"),
    ("models/litellm/adapter", "acorn"),  # The transport loads httpx and aiohttp, which a missing key does not need.
    ("testing/scripted", "asyncio"),
    ("_telemetry/__init__", "acorn"),  # Spans need OpenTelemetry, which a program may not have.
    ("_telemetry/__init__", "opentelemetry"),
    ("mcp/source", "acorn"),  # Connections need the SDK, which is an extra.
    ("mcp/__init__", "acorn"),  # So does the server.
    ("cli/commands/serve", "acorn"),  # The servers and the queue, which no other command needs.
    ("cli/commands/runs", "acorn"),  # The page, for one option.
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
    "approve",
    "ask_human",
    "capture",
    "current_run",
    "deny",
    "listen",
    "module",
    "runs",
    "tool",
]


def level(file: str) -> int:
    prefixes = [prefix for prefix in LEVEL if file == prefix or file.startswith(prefix + "/")]
    assert prefixes, f"{file} has no layer; add it to LAYERS"
    return LEVEL[max(prefixes, key=len)]


def layer_name(file: str) -> str:
    return LAYERS[level(file)][0]


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((SOURCE / f"{file}.py").read_text(encoding="utf-8"))


@cache
def imports(file: str) -> list[tuple[str, bool]]:
    """Return every imported module, and whether the import is inside a function."""
    tree = tree_of(file)
    inside = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(outer)
    }
    names: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(alias.name, id(node) in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import; write the whole name"
            names.append((node.module or "", id(node) in inside))
    return names


@cache
def files_imported(file: str) -> list[str]:
    """Return the files that a file needs: at the top, inside a function, for types only, or by a name in quotes."""
    names: list[str] = []
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names += [name if file_of(name) else str(node.module) for name in whole]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # The name of a package in quotes is the place of its data files: `files("acorn.cli")`.
            names += [node.value] if not (file_of(node.value) or "__init__").endswith("__init__") else []
    return [other for name in dict.fromkeys(names) if (other := file_of(name)) and other != file]


def file_of(name: str) -> str | None:
    """Return `_machine/machine` for `acorn._machine.machine`, or None if there is no such file."""
    path = name.removeprefix("acorn").removeprefix(".").replace(".", "/")
    if name.partition(".")[0] != "acorn":
        return None
    return next((file for file in (path, f"{path}/__init__".removeprefix("/")) if file in KNOWN_FILES), None)


def cycle_in(graph: dict[str, list[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def test_source_file_imports_only_from_its_layer_and_lower_layers() -> None:
    for file in FILES:
        for other in files_imported(file):
            assert level(other) <= level(file), (
                f"{file} ({layer_name(file)}) imports {other} ({layer_name(other)}), which is in a higher layer"
            )


def test_surface_package_imports_private_code_only_through_inside_package() -> None:
    for file in [file for file in FILES if file.partition("/")[0] in SURFACES]:
        for other in files_imported(file):
            own = other.partition("/")[0] == file.partition("/")[0]
            assert own or other.startswith("_inside/") or not other.startswith("_") or other == "__init__", (
                f"{file} imports the private {other}; use `acorn._inside`"
            )


def test_source_files_have_no_import_cycle() -> None:
    cycle = cycle_in({file: files_imported(file) for file in FILES})
    assert not cycle, f"import cycle: {' <- '.join(cycle)}; move what two files need into one below both"


def test_imports_are_at_top_of_source_file() -> None:
    for file in FILES:
        for name, is_inside in imports(file):
            if is_inside:
                assert (file, name.partition(".")[0]) in LATE_IMPORTS, f"{file} imports {name} inside a function"


def test_source_file_has_docstring() -> None:
    assert [file for file in FILES if not ast.get_docstring(tree_of(file))] == []


def test_public_names_of_acorn_match_expected_list() -> None:
    assert sorted(acorn.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(acorn, name) is not None


def test_source_file_name_does_not_hide_public_name() -> None:
    for file in FILES:
        assert file not in PUBLIC, f"`import acorn.{file}` would hide the public `{file}`"


def test_acorn_module_with_capital_letter_is_same_class_as_acorn_module() -> None:
    assert acorn.Module is acorn.module


def test_import_acorn_imports_no_heavy_packages() -> None:
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


def test_package_is_marked_as_typed() -> None:
    assert (SOURCE / "py.typed").exists()

"""Write `docs/reference/`, a page for each public module of the package, from its docstrings: `make reference`.

A docstring is the text; its indented parts are examples. `tools/reference.md` has the rest: the introductions of pages,
examples for names whose docstrings have none, and, in comments, the code that examples need to run. The pages are
committed and run like any page of the documentation; a test checks that they are current.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = Path(__file__).with_name("reference.md")
PAGES = {
    "acorn": "acorn.md",
    "acorn.testing": "testing.md",
    "acorn.journal": "journal.md",
    "acorn.thread": "thread.md",
    "acorn.stores": "stores.md",
    "acorn.models": "models.md",
    "acorn.mcp": "mcp.md",
    "acorn.durable": "durable.md",
    "acorn.web": "web.md",
}
"""The doors, and the file of each."""
GIVEN = {
    "acorn": {
        "runs": ["acorn._call.runs:Runs"],
        "module": [
            "acorn._call.batch:Batch",
            "acorn._call.batch:Item",
            "acorn._call.batch:Progress",
            "acorn._call.submit:Handle",
        ],
    }
}
"""Classes without a door of their own, behind the name that gives them."""
NEEDS = {
    "submit": "a database and workers",
    "MCPServer": "these servers",
    "perform": "a database",
    "app": "a server around it",
    "service": "a server around it",
}
"""Whose docstrings have examples that cannot run by themselves, and what they would need."""
FOR_THE_LOOP = {"Step.chosen_tools", "Step.changes"}
"""Methods that are there for the loop, not for users."""
BEFORE = "<!-- docstring -->"
"""In the examples of a name: what stands above this is for before its docstring."""


@dataclass
class Extra:
    """The text of `reference.md` about a name."""

    before: str = ""
    after: str = ""


@dataclass
class Extras:
    intro: str = ""
    names: dict[str, Extra] = field(default_factory=dict[str, Extra])


def extras() -> dict[str, Extras]:
    """Return the parts of `reference.md` by page and by name."""
    found: dict[str, Extras] = {}
    for page in re.split(r"^# (?=acorn)", EXAMPLES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = page.partition("\n")
        intro, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
        made = found[title.strip()] = Extras(intro.strip())
        for part in parts:
            name, _, body = part.partition("\n")
            before, mark, after = body.partition(BEFORE)
            made.names[name.strip()] = Extra(before.strip(), after.strip()) if mark else Extra("", body.strip())
    return found


def names_of(door: str) -> list[str]:
    """Return the public names of a module in order, each followed by what it returns."""
    listed: list[str] = []
    for name in importlib.import_module(door).__all__:
        listed += [name, *GIVEN.get(door, {}).get(name, ())]
    return listed


def page_of(door: str, extra: Extras) -> str:
    """Return the page of one module as Markdown."""
    lines = [f"# {door}", "", "<!-- written by tools/write_reference.py -->", "", extra.intro]
    for name in names_of(door):
        target, short = found(door, name), name.rpartition(":")[2]
        said = extra.names.get(short, Extra())
        lines += ["", f"## `{short}`", ""]
        lines += [said.before, ""] if said.before else []
        lines += described(target, short)
        lines += ["", said.after] if said.after else []
    parts = re.split(r"(^```.*?^```$)", "\n".join(lines), flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else re.sub(r"\n{3,}", "\n\n", part) for part in parts).strip() + "\n"


def found(door: str, name: str) -> Any:
    home, _, inner = name.partition(":")
    return getattr(importlib.import_module(home), inner) if inner else getattr(importlib.import_module(door), name)


def described(target: Any, name: str) -> Iterator[str]:
    if isinstance(target, type) and name != target.__name__:
        yield f"The same class as `{target.__name__}`, under a conventional name."
    elif isinstance(target, type):
        yield from of_class(target, name)
    elif callable(target) and inspect.isfunction(inspect.unwrap(target)):
        yield from of_function(node_of(inspect.unwrap(target)), "")


def of_class(target: type, name: str) -> Iterator[str]:
    bases = [
        base.__name__ for base in target.__bases__ if base.__module__.startswith("acorn") and base.__name__[0] != "_"
    ]
    if bases:
        yield from (f"Derived from {', '.join(f'`{base}`' for base in bases)}.", "")
    yield prose(target.__doc__ or "", NEEDS.get(name))
    body = [node for base in reversed(homes(target)) for node in node_of(base).body]
    said = list(attributes(target, body))
    if said:
        yield from ("", *said)
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_told(node):
            if f"{name}.{node.name}" in FOR_THE_LOOP:
                continue
            yield from ("", f"### `{name}.{node.name}`", "", *of_function(node, name))


def homes(target: type) -> list[type]:
    """Return the class and those bases whose attributes are not documented elsewhere."""
    return [
        base
        for base in target.__mro__
        if base is target or (base.__module__ == target.__module__ and base.__name__ in SHARED)
    ]


SHARED = ("Event", "Spoken", "Media")
"""Bases that have no name outside."""


def attributes(target: type, body: list[ast.stmt]) -> Iterator[str]:
    """Return a line for each attribute and property, with its docstring."""
    for node, behind in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            words = string_of(behind)
            default = default_of(target, node)
            yield f"- `{node.target.id}: {ast.unparse(node.annotation)}{default}`{told(words)}"
        elif isinstance(node, ast.FunctionDef) and is_property(node) and node.name[0] != "_":
            kind = f": {ast.unparse(node.returns)}" if node.returns else ""
            words = ast.get_docstring(node)
            if words and "\n\n" in words:
                continue  # It has an example, so it gets its own section.
            yield f"- `{node.name}{kind}`{told(words)}"


def default_of(target: type, node: ast.AnnAssign) -> str:
    """Return ` = 5` if an attribute has a short default."""
    if isinstance(node.value, ast.Constant):
        return f" = {ast.unparse(node.value)}"
    if isinstance(node.value, ast.Attribute) and node.value.attr == "default":  # A setting of a module.
        value = getattr(target, ast.unparse(node.target))
        return f" = {value!r}" if isinstance(value, int | float | str | None) else ""
    return ""


def told(words: str | None) -> str:
    """Return the docstring of an attribute; an example in it is separate."""
    if not words:
        return ""
    first, *rest = prose(words).split("\n\n", 1)
    joined = "  " + " ".join(first.split("\n"))
    return f"  \n{joined}" + ("\n\n" + textwrap.indent(rest[0], "  ") + "\n" if rest else "")


def is_told(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    words = ast.get_docstring(node)
    if is_property(node):
        return bool(words and "\n\n" in words)
    return bool(words) and (
        node.name[0] != "_" or node.name in ("__call__", "__and__", "__add__", "__enter__", "__aenter__")
    )


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)


def of_function(node: Any, owner: str) -> Iterator[str]:
    if not is_property(node):
        kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        yield from ("```py", wrapped(f"{kind} {node.name}", ast.unparse(node.args), returns), "```", "")
    yield prose(ast.get_docstring(node) or "", NEEDS.get(node.name))


def wrapped(name: str, arguments: str, returns: str) -> str:
    """Return a signature, on several lines if it is long."""
    shown = re.sub(r"^(?:self|cls)(?:, )?(?:/(?:, )?)?", "", arguments)
    shown = re.sub(r"(: [^=]*?)=(?=[^=])", r"\1 = ", shown.replace("_UNSET", "..."))
    whole = f"{name}({shown}){returns}"
    if len(whole) <= 80:
        return whole
    parts = re.split(r", (?![^\[(]*[\])])", shown)
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returns}"])


def prose(docstring: str, needs: str | None = None) -> str:
    """Return a docstring as Markdown; indented parts are examples."""
    head = f"# not run: it needs {needs}\n" if needs else ""
    parts: list[str] = []
    code: list[str] = []

    def end() -> None:
        if code:
            parts.append("```python\n" + head + textwrap.dedent("\n".join(code)).strip() + "\n```")
            code.clear()

    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        if paragraph.startswith("    ") or (parts and is_code(paragraph)):
            code.extend([*([""] if code else []), *paragraph.split("\n")])
            continue
        end()
        parts.append(paragraph)
    end()
    return "\n\n".join(part for part in parts if part)


def is_code(paragraph: str) -> bool:
    """Return whether an unindented docstring is an example, as the formatter leaves it."""
    try:
        ast.parse(paragraph)
    except SyntaxError:
        return False
    return True


def string_of(node: ast.stmt | None) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return None


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def node_of(target: Any) -> Any:
    """Return the last definition of a class or function in its file: of overloads, the implementation."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = tree_of(inspect.getsourcefile(target) or "")
    return [node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == target.__name__][-1]


def pages() -> dict[str, str]:
    """Return every page of the reference by its file."""
    said = extras()
    return {file: page_of(door, said.get(door, Extras())) for door, file in PAGES.items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "reference"
    folder.mkdir(exist_ok=True)
    for file, text in pages().items():
        (folder / file).write_text(text, encoding="utf-8")

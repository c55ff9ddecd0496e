"""Generate the pages in `docs/reference/`, one page for each public module, from the docstrings: `make reference`.

The text of a page consists of docstrings. The indented paragraphs of a docstring are examples. `tools/reference.md`
contains the other texts: the introductions of the pages, examples for names whose docstrings have no example, and, in
comments, the code that the examples need to run. The generated pages are committed. A test runs their examples like the
examples on other pages, and another test checks that the pages are up to date.
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
"""A dict that maps each public module to the file name of its page."""
RETURNED_CLASSES = {
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
"""A dict that maps public names to classes that have no public name. Users receive instances of these classes, and the
page describes a class after the public name."""
NEEDS = {
    "submit": "a database and workers",
    "MCPServer": "these servers",
    "perform": "a database",
    "app": "a server around it",
    "service": "a server around it",
}
"""A dict that maps names to the requirements of their examples, which the tests cannot provide. The generated page does
not run these examples."""
INTERNAL_METHODS = {"Step.chosen_tools", "Step.changes"}
"""Methods that only the agent loop calls. The pages omit these methods."""
DOCSTRING_MARK = "<!-- docstring -->"
"""A line in `reference.md` that marks the position of the docstring in the texts about a name."""


@dataclass
class Extra:
    """The texts of `reference.md` about one name, for the positions before and after the docstring."""

    before: str = ""
    after: str = ""


@dataclass
class Extras:
    """The texts of `reference.md` for one page: the introduction and the texts about names."""

    intro: str = ""
    names: dict[str, Extra] = field(default_factory=dict[str, Extra])


def extras() -> dict[str, Extras]:
    """Parse `reference.md` and return a dict that maps each public module to the texts for its page."""
    texts: dict[str, Extras] = {}
    for page in re.split(r"^# (?=acorn)", EXAMPLES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = page.partition("\n")
        intro, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
        page_extras = texts[title.strip()] = Extras(intro.strip())
        for part in parts:
            name, _, body = part.partition("\n")
            before, mark, after = body.partition(DOCSTRING_MARK)
            page_extras.names[name.strip()] = Extra(before.strip(), after.strip()) if mark else Extra("", body.strip())
    return texts


def names_of(module: str) -> list[str]:
    """Return the public names of a module in the order of `__all__`.

    The classes of the objects that users receive from a name follow this name, in the form `package.file:Class`.
    """
    names: list[str] = []
    for name in importlib.import_module(module).__all__:
        names += [name, *RETURNED_CLASSES.get(module, {}).get(name, ())]
    return names


def page_of(module: str, extra: Extras) -> str:
    """Return the page of one public module as Markdown."""
    lines = [f"# {module}", "", "<!-- written by tools/write_reference.py -->", "", extra.intro]
    for name in names_of(module):
        target, short = find_target(module, name), name.rpartition(":")[2]
        texts = extra.names.get(short, Extra())
        lines += ["", f"## `{short}`", ""]
        lines += [texts.before, ""] if texts.before else []
        lines += describe(target, short)
        lines += ["", texts.after] if texts.after else []
    parts = re.split(r"(^```.*?^```$)", "\n".join(lines), flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else re.sub(r"\n{3,}", "\n\n", part) for part in parts).strip() + "\n"


def find_target(module: str, name: str) -> Any:
    file, _, inner = name.partition(":")
    return getattr(importlib.import_module(file), inner) if inner else getattr(importlib.import_module(module), name)


def describe(target: Any, name: str) -> Iterator[str]:
    if isinstance(target, type) and name != target.__name__:
        yield f"The same class as `{target.__name__}`, under a conventional name."
    elif isinstance(target, type):
        yield from describe_class(target, name)
    elif callable(target) and inspect.isfunction(inspect.unwrap(target)):
        yield from describe_function(node_of(inspect.unwrap(target)), "")


def describe_class(target: type, name: str) -> Iterator[str]:
    bases = [
        base.__name__ for base in target.__bases__ if base.__module__.startswith("acorn") and base.__name__[0] != "_"
    ]
    if bases:
        yield from (f"Derived from {', '.join(f'`{base}`' for base in bases)}.", "")
    yield prose(target.__doc__ or "", NEEDS.get(name))
    body = [node for base in reversed(documented_classes(target)) for node in node_of(base).body]
    attribute_lines = list(attributes(target, body))
    if attribute_lines:
        yield from ("", *attribute_lines)
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and has_section(node):
            if f"{name}.{node.name}" in INTERNAL_METHODS:
                continue
            yield from ("", f"### `{name}.{node.name}`", "", *describe_function(node, name))


def documented_classes(target: type) -> list[type]:
    """Return the class itself and the private base classes whose attributes its section must describe, too."""
    return [
        base
        for base in target.__mro__
        if base is target or (base.__module__ == target.__module__ and base.__name__ in PRIVATE_BASES)
    ]


PRIVATE_BASES = ("Event", "Spoken", "Media")
"""The names of base classes that are not public."""


def attributes(target: type, body: list[ast.stmt]) -> Iterator[str]:
    """Yield a Markdown list item with the docstring for each attribute and property of a class."""
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            docstring = string_of(following)
            default = default_of(target, node)
            yield f"- `{node.target.id}: {ast.unparse(node.annotation)}{default}`{list_text(docstring)}"
        elif isinstance(node, ast.FunctionDef) and is_property(node) and node.name[0] != "_":
            kind = f": {ast.unparse(node.returns)}" if node.returns else ""
            docstring = ast.get_docstring(node)
            if docstring and "\n\n" in docstring:
                continue  # A property with an example has a section of the page instead of a list item.
            yield f"- `{node.name}{kind}`{list_text(docstring)}"


def default_of(target: type, node: ast.AnnAssign) -> str:
    """Return a text such as ` = 5` if an attribute has a short default value, and otherwise ""."""
    if isinstance(node.value, ast.Constant):
        return f" = {ast.unparse(node.value)}"
    # The class `module` declares its settings as `name: type = setting.default`.
    if isinstance(node.value, ast.Attribute) and node.value.attr == "default":
        value = getattr(target, ast.unparse(node.target))
        return f" = {value!r}" if isinstance(value, int | float | str | None) else ""
    return ""


def list_text(docstring: str | None) -> str:
    """Return the docstring of an attribute as the text of a list item, with its example as a separate paragraph."""
    if not docstring:
        return ""
    first, *others = prose(docstring).split("\n\n", 1)
    joined = "  " + " ".join(first.split("\n"))
    return f"  \n{joined}" + ("\n\n" + textwrap.indent(others[0], "  ") + "\n" if others else "")


def has_section(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a method or property has a section of the page."""
    docstring = ast.get_docstring(node)
    if is_property(node):
        return bool(docstring and "\n\n" in docstring)
    return bool(docstring) and (
        node.name[0] != "_" or node.name in ("__call__", "__and__", "__add__", "__enter__", "__aenter__")
    )


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(name, ast.Name) and name.id == "property" for name in node.decorator_list)


def describe_function(node: Any, owner: str) -> Iterator[str]:
    if not is_property(node):
        kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        yield from ("```py", format_signature(f"{kind} {node.name}", ast.unparse(node.args), returns), "```", "")
    yield prose(ast.get_docstring(node) or "", NEEDS.get(node.name))


def format_signature(name: str, arguments: str, returns: str) -> str:
    """Return a function signature without `self`, on several lines if it has more than 80 characters.

    The transaction of a store method is also omitted, because the decorator of the method passes it.
    """
    visible = re.sub(r"^(?:self|cls)(?:, )?(?:transaction: Transaction(?:, )?)?(?:/(?:, )?)?", "", arguments)
    visible = re.sub(r"(: [^=]*?)=(?=[^=])", r"\1 = ", visible.replace("_UNSET", "..."))
    one_line = f"{name}({visible}){returns}"
    if len(one_line) <= 80:
        return one_line
    parameters = re.split(r", (?![^\[(]*[\])])", visible)
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){returns}"])


def prose(docstring: str, needs: str | None = None) -> str:
    """Convert a docstring to Markdown, with code blocks in place of the indented paragraphs.

    `needs` lists the requirements of examples that the tests cannot run.
    """
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
    """Return whether a paragraph without indentation is an example.

    The formatter removes the indentation of an example if a docstring contains nothing else.
    """
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
    """Return the last syntax tree node that defines a class or function in its file.

    For a function with overloads, the last definition is the implementation.
    """
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = tree_of(inspect.getsourcefile(target) or "")
    return [node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == target.__name__][-1]


def pages() -> dict[str, str]:
    """Return a dict that maps file names to the generated pages."""
    texts = extras()
    return {file: page_of(module, texts.get(module, Extras())) for module, file in PAGES.items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "reference"
    folder.mkdir(exist_ok=True)
    for file, text in pages().items():
        (folder / file).write_text(text, encoding="utf-8")

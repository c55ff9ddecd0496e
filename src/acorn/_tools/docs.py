"""What a docstring says of a tool: its description, and a line for each parameter.

Google, NumPy and Sphinx styles are understood. The description is all the text before the first section.
"""

from __future__ import annotations

import inspect
import re
import textwrap

_GOOGLE = re.compile(
    r"^(?:Args|Arguments|Parameters|Params|Attributes|Returns?|Yields?|Raises|Exceptions|Except|Examples?|Notes?|"
    r"Warnings?|Warns|See Also|References|Todo|Keyword Args|Keyword Arguments|Other Parameters|Methods)\s*:[ \t]*$",
    re.MULTILINE,
)
_OF_PARAMETERS = ("Args", "Arguments", "Parameters", "Params", "Keyword Args", "Keyword Arguments", "Other Parameters")
_NUMPY = re.compile(r"^[A-Z][A-Za-z ]*\n(?:-{3,}|={3,})[ \t]*$", re.MULTILINE)
_SPHINX = re.compile(
    r"^:(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|yields?|ytype|var|ivar|cvar|vartype|except|exception)\b[^:\n]*:",
    re.MULTILINE,
)


def read_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """The description, and the words about each parameter."""
    text = _clean(doc) if doc else ""
    starts = {style: found.start() for style, found in _sections(text) if found}
    if not starts:
        return text.strip(), {}
    style = min(starts, key=lambda style: starts[style])
    return text[: starts[style]].strip(), _parameters(text[starts[style] :], style)


def _clean(doc: str) -> str:
    """Without the indent of the source, but with that of a section which begins on the first line."""
    text = inspect.cleandoc(doc)
    first, _, rest = text.partition("\n")
    if _GOOGLE.match(first) and not rest[:1].isspace():
        return first + "\n" + textwrap.indent(rest, "    ")
    return text


def _sections(text: str) -> list[tuple[str, re.Match[str] | None]]:
    return [
        ("google", _GOOGLE.search(text)),
        ("numpy", _NUMPY.search(text)),
        ("sphinx", _SPHINX.search(text)),
    ]


def _parameters(text: str, style: str) -> dict[str, str]:
    from docstring_parser import google, numpydoc, rest

    # No other section of a Google docstring is read, so that a malformed one costs nothing.
    sections = [google.Section(title, "param", google.SectionType.MULTIPLE) for title in _OF_PARAMETERS]
    parsers = {
        "google": google.GoogleParser(sections).parse,
        "numpy": numpydoc.parse,
        "sphinx": rest.parse,
    }
    try:
        # The parsers take away the common indent of all but the first line, which must not be a section's title.
        parsed = parsers[style](f"_\n\n{text}")
    except Exception:  # the parser's; a malformed section costs its descriptions, never the tool
        return {}
    found: dict[str, str] = {}
    for parameter in parsed.params:
        words = (parameter.description or "").strip()
        for name in parameter.arg_name.split(","):
            if words:
                found[name.strip().lstrip("*")] = words
    return found

"""The document that tells a model what was wrong with its output."""

from __future__ import annotations

from collections.abc import Sequence

from acorn._schema.problems import Problem
from acorn._xml.text import escape_attribute, escape_text

INVALID = '<error type="validation">'
"""How the document begins."""


def error_document(problems: Sequence[Problem], message: str = "Output validation failed") -> str:
    """One `<field>` a problem: where, what was expected, what was received."""
    lines = [INVALID, f"  <message>{escape_text(message)}</message>"]
    if problems:
        lines.append("  <details>")
        for problem in problems:
            lines += [
                f'    <field name="{escape_attribute(problem["path"] or "output")}">',
                f"      <expected>{escape_text(problem['expected'])}</expected>",
                f"      <received>{escape_text(problem['received'])}</received>",
                "    </field>",
            ]
        lines.append("  </details>")
    lines += [
        "  <instruction>Please provide the output again in the correct format.</instruction>",
        "</error>",
    ]
    return "\n".join(lines)

"""Where in a schema a picture, a sound or a file is asked for, which no model can write."""

from __future__ import annotations

from typing import Any

from acorn._schema.generate import JsonSchema
from acorn.errors import DeclarationError

FORMAT = "acorn-"
"""How the `format` of such a value begins: `acorn-image`."""


def media_in(schema: JsonSchema) -> tuple[str, str] | None:
    """The first field that is one, `pages.photo`, and what it is, `image`; None where there is none."""
    return _found(schema, schema, (), frozenset())


def without_media(schema: JsonSchema, whose: str) -> JsonSchema:
    """The schema of what a model is to write; `whose` names it in an error."""
    if (found := media_in(schema)) is None:
        return schema
    path, kind = found
    what = {"image": "an image", "file": "a file"}.get(kind, kind)
    field = f", and `{path}` is {what}" if path else f", and it is {what}"
    raise DeclarationError(
        f"{whose} is written by the model, which cannot make an image, audio or a file{field}. Take a text that says "
        f"which is meant, a name or a URL, and give the model images by the input and by what tools return."
    )


def _found(node: Any, top: JsonSchema, path: tuple[str, ...], seen: frozenset[str]) -> tuple[str, str] | None:
    if isinstance(node, list):
        return next(filter(None, (_found(each, top, path, seen) for each in node)), None)
    if not isinstance(node, dict):
        return None
    if isinstance(kind := node.get("format"), str) and kind.startswith(FORMAT):
        return ".".join(path), kind.removeprefix(FORMAT)
    if isinstance(ref := node.get("$ref"), str) and ref not in seen:
        name = ref.rpartition("/")[2]
        return _found((top.get("$defs") or {}).get(name), top, path, seen | {ref})
    for name, inner in (node.get("properties") or {}).items():
        if (found := _found(inner, top, (*path, name), seen)) is not None:
            return found
    inside = [node.get(key) for key in ("anyOf", "oneOf", "allOf", "items", "prefixItems", "additionalProperties")]
    return _found(inside, top, path, seen)

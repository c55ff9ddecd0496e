"""`pin="mcp.lock"`: the definitions that were seen first, and a diff where a server has others now.

The file holds the definitions themselves, so that it can be read and reviewed, and several servers side by side.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

from acorn._json import shorten
from acorn.errors import AcornError
from acorn.mcp.definitions import Definition

_LONGEST_DIFF = 6000


def check_pinned(path: Path, key: str, definitions: Sequence[Definition]) -> None:
    """Compare what a server defines with the file; what is not in the file yet is written to it."""
    whole = _read(path)
    now = {each.name: each.plain for each in definitions}
    known = whole["servers"].get(key)
    if known is None:
        whole["servers"][key] = now
        _write(path, whole)
    elif known != now:
        raise AcornError(
            f"The MCP server `{key}` defines its tools otherwise than `{path}` has them, so none of them is called. "
            f"Read the difference; if you trust it, remove `{key}` from the file and run again.\n"
            f"{_difference(known, now)}"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"servers": {}}
    except (OSError, ValueError, RecursionError) as error:
        raise AcornError(f"`{path}`, the `pin` of an MCP server, cannot be read: {shorten(str(error))}.") from error
    if not isinstance(found, dict) or not isinstance(found.get("servers"), dict):
        raise AcornError(f"`{path}`, the `pin` of an MCP server, is no file that `pin` has written; name another.")
    return found


def _write(path: Path, whole: dict[str, Any]) -> None:
    """At once or not at all: another process may read it."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(_text(whole) + "\n")
            os.chmod(name, 0o644)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
    except OSError as error:
        raise AcornError(f"`{path}`, the `pin` of an MCP server, cannot be written: {error.strerror}.") from error


def _difference(known: Any, now: Any) -> str:
    lines = list(unified_diff(_text(known).splitlines(), _text(now).splitlines(), "pinned", "now", lineterm="", n=2))
    return shorten("\n".join(lines), _LONGEST_DIFF)


def _text(value: Any) -> str:
    # In ASCII, so that a diff shows what cannot be seen.
    return json.dumps(value, indent=2, sort_keys=True)

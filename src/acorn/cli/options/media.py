"""Pictures, sounds and files on the command line: what is written there is a path, unless it is a URL."""

from __future__ import annotations

import re
from pathlib import Path

from acorn import Audio, File, Image
from acorn.cli.exit import CommandError
from acorn.cli.options.schema import Node

_CLASSES: dict[str, type[Image | Audio | File]] = {"image": Image, "audio": Audio, "file": File}


def read_media(text: str, node: Node, option: str) -> Image | Audio | File | str | None:
    """The value that an option names; a URL is the field's to judge."""
    if re.match(r"(?i)(data:|https?://)", text):
        return text
    if text == "null" and "null" in node.kinds and not Path(text).exists():
        return None
    found: list[str] = []
    for kind in node.media:
        try:
            return _CLASSES[kind].from_path(text)
        except OSError as error:
            raise CommandError(f"`{option} {text}` cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            found.append(str(error).partition(";")[0])  # what else it says is for programs
    raise CommandError(f"`{option}`: {found[0]}")

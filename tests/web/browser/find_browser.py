"""The browser of the tests: the system's Chromium."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

REQUIRED = "required"
_NAMES = ("chromium", "chromium-headless-shell", "google-chrome", "chromium-browser")
_PLACES = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


def browser() -> str | None:
    """Return the path of a Chromium, or None."""
    wanted = os.environ.get("ACORN_BROWSER", "")
    if wanted and wanted != REQUIRED:
        return wanted
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return found or next((place for place in _PLACES if Path(place).exists()), None)


def is_required() -> bool:
    return os.environ.get("ACORN_BROWSER") == REQUIRED


if __name__ == "__main__":
    here = browser()
    sys.stdout.write(f"{here}\n" if here else "")
    sys.exit(0 if here else 1)

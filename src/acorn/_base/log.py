"""The logger `acorn`, silent until a program listens to it."""

from __future__ import annotations

import logging

logger = logging.getLogger("acorn")
# Without a handler of its own Python would print its warnings.
logger.addHandler(logging.NullHandler())

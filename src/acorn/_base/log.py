"""The logger `acorn`, which prints nothing until a program configures logging."""

from __future__ import annotations

import logging

logger = logging.getLogger("acorn")
# Without a handler, Python prints warnings to stderr.
logger.addHandler(logging.NullHandler())

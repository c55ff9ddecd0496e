"""The logger `acorn`: silent until somebody wants to hear it."""

from __future__ import annotations

import logging

logger = logging.getLogger("acorn")
logger.addHandler(logging.NullHandler())

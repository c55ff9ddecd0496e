"""The switch between the short version of the tests (`make test`) and the long one (`make torture`)."""

from __future__ import annotations

import os

IS_LONG = os.environ.get("ACORN_TORTURE") == "1"
"""True in the long version of the tests: more seeds, all combinations instead of pairs, every way of calling."""

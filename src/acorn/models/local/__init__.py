"""Embedded language models, which run in this process and need neither an API key nor a network connection."""

from functools import partial

from acorn.errors import ModelError

local_error = partial(ModelError, provider="local")
"""A function that returns a `ModelError` of an embedded model."""

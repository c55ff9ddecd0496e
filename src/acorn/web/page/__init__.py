"""The browser page, on which users run an agent and inspect stored runs."""

TEXT_LIMIT = 200_000
"""The maximum number of characters of one text in a detail view."""
STREAM_LIMIT = 20_000
"""The maximum number of characters of one text in a stream."""
PREVIEW_LIMIT = 140
"""The maximum number of characters of the preview of a row."""
NO_LIMIT = 10**9
"""A limit for texts that must not be cut."""

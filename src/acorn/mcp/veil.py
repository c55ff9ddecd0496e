"""Words of a server's errors, kept from the SDK: it writes them to spans of its own, where nobody takes keys out.

The SDK sees a number in their place, and who tells of an error puts the words back.
"""

from __future__ import annotations

import re
from typing import Any

_MOST = 1000
"""Errors whose words are kept; by then they have been told."""
_NUMBER = re.compile(r"error \d+ of the server")


class Veil:
    """The words of one connection's errors, by what stands for them."""

    def __init__(self) -> None:
        from mcp_types import JSONRPCError

        self._is_error = JSONRPCError
        self._words: dict[str, str] = {}
        self._count = 0

    def over(self, item: Any) -> Any:
        """A message of the SDK's, without its words where it is an error."""
        if isinstance(item.message, self._is_error):
            self._count += 1
            number = f"error {self._count} of the server"
            self._words[number] = item.message.error.message
            self._words.pop(f"error {self._count - _MOST} of the server", None)
            item.message.error.message = number
        return item

    def lift(self, text: str) -> str:
        """A text with the words that the server gave to the errors in it."""
        return _NUMBER.sub(lambda found: self._words.get(found[0], found[0]), text)

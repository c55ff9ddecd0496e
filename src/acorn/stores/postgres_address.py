"""Where a PostgreSQL database is: its URL with what a connection needs beside it, and its name without any secret."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from acorn.errors import DeclarationError

_SHOWN = ("host", "hostaddr", "port", "dbname", "user", "service", "sslmode", "target_session_attrs")
"""What of the part behind the question mark may be shown."""
_NO_PORT = re.compile(r":(?!\d*(,|/|$))(?![^\[]*\])[^/]*")
_DEFAULTS = {
    "application_name": "acorn",
    "connect_timeout": "10",
    # A network that is gone is noticed in about half a minute, and not in two hours.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}


class Address:
    def __init__(self, url: str) -> None:
        self.name = _shown(url)
        try:
            known: dict[str, Any] = {} if _is_misread(url) else conninfo_to_dict(url)
        except ProgrammingError:  # what it says may hold a part of the password
            known = {}
        if not known and self.name != f"{url.partition('://')[0]}://":
            raise DeclarationError(
                f"`{self.name}` is no URL of a PostgreSQL database; write 'postgresql://user:password@host:port/name', "
                f"and special characters of a password like `%40` for an @."
            )
        self.parameters: dict[str, Any] = {**_DEFAULTS, **known, "client_encoding": "UTF8"}
        secrets = [str(value) for key, value in known.items() if "password" in key or "secret" in key]
        self._secrets = sorted({*secrets, *map(quote, secrets)} - {""}, key=len, reverse=True)

    def without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _shown(url: str) -> str:
    """The URL without a password, however it is written."""
    scheme, _, rest = url.partition("://")
    place, mark, query = rest.partition("?")
    # What stands behind a colon is a part of a password where it is no port: one with an `@`, a slash or a question
    # mark in it is not where it should be.
    user, at, host = place.rpartition("@")
    host = _NO_PORT.sub("", host)
    kept = [(key, value) for key, value in parse_qsl(query) if key in _SHOWN] if mark else []
    return f"{scheme}://{user.partition(':')[0]}{at}{host}" + (f"?{urlencode(kept, safe='/,')}" if kept else "")


def _is_misread(url: str) -> bool:
    """Whether a password would be taken for something else."""
    place = url.partition("://")[2].partition("?")[0]
    authority, _, path = place.partition("/")
    return authority.count("@") > 1 or "@" in path or _NO_PORT.search(authority.rpartition("@")[2]) is not None

"""The check of the settings of a service for risks: `acorn serve --check`, and the warnings at its start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from acorn._inside import Agent, tools_that_ask
from acorn.stores.port import Store
from acorn.web.guard import AccessKey

_GOOD_LENGTH = 16
"""The number of characters of a key below which an attacker may guess it."""


def find_risks(
    agent: Agent, store: Store | None, keys: Sequence[AccessKey], *, is_local: bool, has_tls: bool, is_new_key: bool
) -> Iterator[str]:
    """Yield a sentence or two for each risky setting: the problem and its fix.

    `is_local` says that only this machine can reach the service, `has_tls` that a proxy with TLS is in front of it, and
    `is_new_key` that the server has generated the key of the clients at its start.
    """
    if not any(not key.is_approver for key in keys):
        yield "All users and programs of this machine can use the service, because clients need no key. Set a key."
    if not is_local and not has_tls:
        yield (
            "Other machines send keys and data without encryption. Put a proxy with TLS in front of the server, and "
            "add `--behind-tls`."
        )
    if not is_local and is_new_key:
        yield (
            "The key changes at each start, so clients lose access and their runs. Set the key in an environment "
            "variable."
        )
    for key in keys:
        if len(key.value) < _GOOD_LENGTH:
            name = "" if key.name is None else f" `{key.name}`"
            kind = "approver key" if key.is_approver else "key"
            yield (
                f"The {kind}{name} may be guessed, because it has fewer than {_GOOD_LENGTH} characters. Generate one: "
                f"python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
    asking = tools_that_ask(agent)
    if asking and keys and not any(key.is_approver for key in keys):
        names = ", ".join(f"`{name}`" for name in asking[:5])
        yield (
            f"No client can answer requests for human input ({names}), because there is no approver key. Set one, or "
            f"use `acorn answer`."
        )
    if asking and not keys:
        yield "Every client can approve its own tool calls, because there is no approver key. Set one."
    yield from _store_risks(store)


def _store_risks(store: Store | None) -> Iterator[str]:
    """Yield the risks of the files of a SQLite store."""
    path = None if store is None or "://" in store.name else Path(store.name).expanduser()
    if path is None or not path.is_file():
        return
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if file.exists() and file.stat().st_mode & 0o077:
            yield f"Other users of this machine can read or change the store. Run: chmod 600 {file}"
    mode = path.resolve().parent.stat().st_mode
    if mode & 0o022 and not mode & 0o1000:
        yield f"Other users of this machine can replace the store. Run: chmod go-w {path.resolve().parent}"

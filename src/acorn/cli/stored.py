"""The store that a command works on, the run in it that is meant, and the agent that the run is one of."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acorn import AcornError, InputError, StoreError
from acorn._beginning import kept_settings
from acorn.cli.exit import CommandError, message_of
from acorn.cli.load_target import Agent, load
from acorn.stores.open import open_store
from acorn.stores.port import Kept, Store

VARIABLE = "ACORN_STORE"
USUAL = Path(".acorn/runs.db")
STORE_HELP = f"Where the runs are kept; else `{VARIABLE}`, or `{USUAL}` if it is there."
_HEX = re.compile(r"[0-9a-f]{32}")


@contextmanager
def told() -> Generator[None]:
    """What goes wrong with a store is one line for the user."""
    try:
        yield
    except (InputError, StoreError) as error:
        raise CommandError(message_of(error)) from error


def named_store(option: str | None, own: Any = None) -> Any:
    """What names the store of a command: the option, the environment, the class's own, the usual file."""
    usual = str(USUAL) if USUAL.exists() else None
    return option or os.environ.get(VARIABLE) or own or usual


def store_of(option: str | None) -> Store:
    """The store of a command that has nothing else to go by."""
    named = named_store(option)
    if named is None:
        raise CommandError(f"there is no store here; say which, as in `--store runs.db`, or set `{VARIABLE}`")
    if isinstance(named, str) and "://" not in named and named != "memory" and not Path(named).exists():
        raise CommandError(f"there is no store `{named}`; a run makes one, as in `acorn run agent.py --store {named}`")
    return _opened(named)


def usable_store(named: Any) -> Store:
    """The store of a server: one that cannot be read is told at once, and not when the first run is to be kept."""
    store = _opened(named)
    with told():
        store.list(limit=1)
    return store


def _opened(named: Any) -> Store:
    try:
        return open_store(named, "`--store`")
    except AcornError as error:
        raise CommandError(message_of(error)) from error


def whole_id(store: Store, written: str) -> str:
    """The id of the one run that begins like this."""
    with told():
        found = store.find(written)
    if len(found) == 1:
        return found[0]
    if not found:
        raise CommandError(f"there is no run `{written}` in {store.name}; `acorn runs` lists what there is")
    listed = ", ".join(f"`{each}`" for each in found[:5])
    raise CommandError(f"`{written}` may be {len(found)} runs: {listed}{', ...' if len(found) > 5 else ''}")


def short(run_id: str) -> str:
    """An id as people write it: of one that we made, the beginning."""
    return run_id[:8] if _HEX.fullmatch(run_id) else run_id


def agent_of(kept: Kept, store: Store, target: str | None, debug: bool) -> Agent:
    """The agent of a kept run, as it was; `target` says where its class is, if that is known better."""
    birth = kept.birth
    notes: Mapping[str, Any] = json.loads(birth.overrides) if birth.overrides else {}
    module, _, name = birth.agent.partition(":")
    file = notes.get("file")
    if target is None and not name.isidentifier():
        raise CommandError(
            f"`{name}` cannot be found from outside, since it is inside something else; go on with the run in its own "
            f"program, by `resume`, or say `--agent`"
        )
    source = target or (f"{file}:{name}" if file and Path(file).is_file() else f"{module}:{name}")
    try:
        agent = load(source, debug=debug)
    except CommandError as error:
        if target is None:
            words = f"the class of the run is not where it was: {error}; say where it is by `--agent FILE:CLASS`"
            raise CommandError(words, error.code, debug=debug) from error
        raise
    try:
        return agent.using(store=store, **kept_settings(kept))
    except (AcornError, TypeError) as error:
        raise CommandError(message_of(error), debug=debug) from error


def value_of(text: str) -> Any:
    """What somebody wrote as an answer: JSON where it is JSON, otherwise the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text

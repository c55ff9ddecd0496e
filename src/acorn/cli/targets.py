"""The target of `acorn run`: from `agent.py:Researcher` to the module that it names.

A file is imported the way `python file.py` would find its neighbours, a dotted name the way `python -m`
does. Whatever goes wrong in the user's code is reported with its file and line.

The store that a command works on, the run in it that is meant, and the agent that the run is one of.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from acorn import AcornError, InputError, StoreError, module
from acorn._inside import describe_agent, stored_file, stored_settings
from acorn.cli.output import CommandError, error_text, line_reached, message_of
from acorn.stores.open import open_store
from acorn.stores.port import Store, StoredRun

Agent = module[Any, Any]
Made = TypeVar("Made")

_NAMED = re.compile(r"(?P<source>.+?):(?P<name>[^\W\d]\w*)")


def load(target: str, *, debug: bool = False, once: bool = False) -> Agent:
    """The instance to run; `CommandError` says what is missing.

    `once`: a file that was executed before is not executed again. Of several targets that share a file, or import each
    other, what is counted by class is then counted together.
    """
    source, name = _split(target)
    if Path(source).is_dir():
        raise CommandError(f"`{source}` is a directory; give the file of a module, such as `agent.py`")
    is_file = source.endswith(".py") or os.sep in source or Path(source).is_file()
    loaded = _load_file(Path(source), debug, once) if is_file else _load_module(source, debug)
    found = _named(loaded, name, source) if name else _only(loaded, source)
    if isinstance(found, module):
        return found
    return _guarded(found, loaded, f"`{found.__name__}()` failed", debug)


def _split(target: str) -> tuple[str, str | None]:
    if Path(target).exists():
        return target, None
    if target.endswith(":"):
        raise CommandError(f"`{target}` names no class; write one behind the colon, or leave the colon out")
    match = _NAMED.fullmatch(target)
    if match is None:
        return target, None
    return match["source"], match["name"]


def _load_file(file: Path, debug: bool, once: bool) -> ModuleType:
    if not file.is_file():
        raise CommandError(f"there is no file `{file}`{_near(file)}")
    file = file.resolve()
    sys.path.insert(0, str(file.parent))
    # Under its own name, so that its neighbours can import it; but never in the place of another module.
    name = f"acorn_run_{file.stem}" if _is_taken(file) else file.stem
    known = sys.modules.get(name)
    if once and known is not None and known.__file__ == str(file):
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise CommandError(f"`{file.name}` is no Python file; give a file that ends in `.py`, or a module's name")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    execute = spec.loader.exec_module
    _guarded(lambda: execute(loaded), loaded, f"`{file.name}` cannot be imported", debug)
    return loaded


def _near(file: Path) -> str:
    """A file there that may have been meant."""
    try:
        there = [each.name for each in file.parent.glob("*.py")]
    except OSError:
        return ""
    near = get_close_matches(file.name, there, 1)
    return f"; did you mean `{file.with_name(near[0])}`?" if near else ""


def _is_taken(file: Path) -> bool:
    known = sys.modules.get(file.stem)
    return not file.stem.isidentifier() or (known is not None and getattr(known, "__file__", None) != str(file))


def _load_module(name: str, debug: bool) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return _guarded(lambda: importlib.import_module(name), None, f"`{name}` cannot be imported", debug)
    except CommandError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{name}.".startswith(f"{cause.name}."):
            raise CommandError(
                f"there is no module `{cause.name}`; give a file such as `agent.py`, or a name that Python can import "
                f"from here",
                debug=debug,
            ) from cause
        raise


def _guarded(act: Callable[[], Made], loaded: ModuleType | None, failure: str, debug: bool) -> Made:
    """Do something that runs the user's code; its errors are reported with their line."""
    try:
        return act()
    except SystemExit as error:
        raise CommandError(
            f"{line_reached(error, loaded)}{failure}: it ends the program; put that below `if __name__ == '__main__':`",
            debug=debug,
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's code raises
        words = message_of(error) if isinstance(error, AcornError) else error_text(error)
        if isinstance(error, SyntaxError) and error.lineno is not None:
            words = f"{type(error).__name__}: {error.msg}"
        raise CommandError(f"{line_reached(error, loaded)}{failure}: {words}", debug=debug) from error


def _classes(loaded: ModuleType) -> list[type[Agent]]:
    """The module classes that are defined there; if there are none, those that are imported there."""
    found = [
        value
        for value in dict.fromkeys(each for each in vars(loaded).values() if isinstance(each, type))
        if issubclass(value, module) and value is not module
    ]
    return [cls for cls in found if cls.__module__ == loaded.__name__] or found


def _only(loaded: ModuleType, source: str) -> type[Agent]:
    classes = _classes(loaded)
    branches = [(cls, branch) for cls in classes for branch in describe_agent(cls).branches.values()]
    used = [branch for cls, branch in branches if branch is not cls]
    free = [cls for cls in classes if cls not in used]
    if len(free) == 1:
        return free[0]
    if not classes:
        raise CommandError(f"`{source}` defines no module; derive a class from `acorn.module` there")
    names = ", ".join(f"`{source}:{cls.__name__}`" for cls in free or classes)
    raise CommandError(f"`{source}` defines several modules; say which one: {names}")


def _named(loaded: ModuleType, name: str, source: str) -> type[Agent] | Agent:
    found: Any = getattr(loaded, name, None)
    if isinstance(found, module) or (isinstance(found, type) and issubclass(found, module) and found is not module):
        return found
    others = ", ".join(f"`{cls.__name__}`" for cls in _classes(loaded)) or "none"
    what = f"has no `{name}`" if found is None else f"has a `{name}` that is no module"
    raise CommandError(f"`{source}` {what}; its modules: {others}")


VARIABLE = "ACORN_STORE"
USUAL = Path(".acorn/runs.db")
STORE_HELP = f"Where the runs are kept; else `{VARIABLE}`, or `{USUAL}` if it is there."
_HEX = re.compile(r"[0-9a-f]{32}")


@contextmanager
def as_usage_error() -> Generator[None]:
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
    with as_usage_error():
        store.list(limit=1)
    return store


def _opened(named: Any) -> Store:
    try:
        return open_store(named, "`--store`")
    except AcornError as error:
        raise CommandError(message_of(error)) from error


def whole_id(store: Store, written: str) -> str:
    """The id of the one run that begins like this."""
    with as_usage_error():
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


def agent_of(kept: StoredRun, store: Store, target: str | None, debug: bool) -> Agent:
    """The agent of a kept run, as it was; `target` says where its class is, if that is known better."""
    birth = kept.header
    module, _, name = birth.agent.partition(":")
    file = stored_file(kept)
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
        return agent.using(store=store, **stored_settings(kept))
    except (AcornError, TypeError) as error:
        raise CommandError(message_of(error), debug=debug) from error


def value_of(text: str) -> Any:
    """What somebody wrote as an answer: JSON where it is JSON, otherwise the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text

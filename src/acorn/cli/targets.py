"""The agent, the store and the run that the arguments of a command name.

A target such as `agent.py:Researcher` names an agent. A file is imported as `python file.py` would do it, with its
neighbors importable. A dotted name is imported as `python -m` would do it. An error in the user's code is reported with
its file and line.
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
from typing import Any, TypeGuard, TypeVar

from acorn import AcornError, InputError, StoreError, module
from acorn._inside import describe_agent, is_instance, stored_instance
from acorn.cli.output import CommandError, error_message, error_text, user_code_line
from acorn.stores.open import open_store
from acorn.stores.port import Store, StoredRun

Agent = module[Any, Any]
T = TypeVar("T")

_TARGET = re.compile(r"(?P<source>.+?):(?P<name>[^\W\d]\w*)")


# Agents


def load_agent(target: str, *, debug: bool = False, once: bool = False) -> Agent:
    """Import the target and return an instance of its class.

    `once`: do not execute a file again that was executed before. If several targets share a file or import each other,
    limits that are counted by class are then counted together.
    """
    source, name = _split_target(target)
    if Path(source).is_dir():
        raise CommandError(f"`{source}` is a directory. Give the file of a module, such as `agent.py`.")
    is_file = source.endswith(".py") or os.sep in source or Path(source).is_file()
    loaded = _load_file(Path(source), debug, once) if is_file else _load_module(source, debug)
    agent_or_class = _find_agent(loaded, name, source) if name else _only_class(loaded, source)
    if isinstance(agent_or_class, module):
        return agent_or_class
    return _run_user_code(agent_or_class, loaded, f"`{agent_or_class.__name__}()` failed", debug)


def _split_target(target: str) -> tuple[str, str | None]:
    if Path(target).exists():
        return target, None
    if target.endswith(":"):
        raise CommandError(f"`{target}` has no class name. Add one after the colon, or remove the colon.")
    match = _TARGET.fullmatch(target)
    if match is None:
        return target, None
    return match["source"], match["name"]


def _load_file(file: Path, debug: bool, once: bool) -> ModuleType:
    if not file.is_file():
        raise CommandError(f"There is no file `{file}`.{_suggest_file(file)}")
    file = file.resolve()
    sys.path.insert(0, str(file.parent))
    # Under its own name, so that its neighbors can import it, but never in the place of another module.
    name = f"acorn_run_{file.stem}" if _is_taken(file) else file.stem
    known = sys.modules.get(name)
    if once and known is not None and known.__file__ == str(file):
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise CommandError(
            f"`{file.name}` is not a Python file. Give a file that ends in `.py`, or the name of a module."
        )
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    execute = spec.loader.exec_module
    _run_user_code(lambda: execute(loaded), loaded, f"cannot import `{file.name}`", debug)
    return loaded


def _suggest_file(file: Path) -> str:
    try:
        names = [path.name for path in file.parent.glob("*.py")]
    except OSError:
        return ""
    similar = get_close_matches(file.name, names, 1)
    return f" Did you mean `{file.with_name(similar[0])}`?" if similar else ""


def _is_taken(file: Path) -> bool:
    known = sys.modules.get(file.stem)
    return not file.stem.isidentifier() or (known is not None and getattr(known, "__file__", None) != str(file))


def _load_module(name: str, debug: bool) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return _run_user_code(lambda: importlib.import_module(name), None, f"cannot import `{name}`", debug)
    except CommandError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{name}.".startswith(f"{cause.name}."):
            raise CommandError(
                f"There is no module `{cause.name}`. Give a file such as `agent.py`, or a name that Python can import "
                f"from this directory.",
                debug=debug,
            ) from cause
        raise


def _run_user_code(act: Callable[[], T], loaded: ModuleType | None, failure: str, debug: bool) -> T:
    """Call a function that runs the user's code; report an error with its line."""
    try:
        return act()
    except SystemExit as error:
        raise CommandError(
            f"{user_code_line(error, loaded)}{failure}: it ends the program. "
            f"Put that code below `if __name__ == '__main__':`.",
            debug=debug,
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # The user's code can raise anything.
        reason = error_message(error) if isinstance(error, AcornError) else error_text(error)
        if isinstance(error, SyntaxError) and error.lineno is not None:
            reason = f"{type(error).__name__}: {error.msg}"
        raise CommandError(f"{user_code_line(error, loaded)}{failure}: {reason}", debug=debug) from error


def _module_classes(loaded: ModuleType) -> list[type[Agent]]:
    """Return the module classes that a Python module defines, or those that it imports if it defines none."""
    classes = list(dict.fromkeys(value for value in vars(loaded).values() if _is_module_class(value)))
    return [cls for cls in classes if cls.__module__ == loaded.__name__] or classes


def _is_module_class(value: object) -> TypeGuard[type[Agent]]:
    return isinstance(value, type) and issubclass(value, module) and value is not module


def _only_class(loaded: ModuleType, source: str) -> type[Agent]:
    """Return the only class that is not a branch of another one."""
    classes = _module_classes(loaded)
    branches = [branch for cls in classes for branch in describe_agent(cls).branches.values() if branch is not cls]
    candidates = [cls for cls in classes if cls not in branches]
    if len(candidates) == 1:
        return candidates[0]
    if not classes:
        raise CommandError(f"`{source}` defines no module. Derive a class from `acorn.module` there.")
    names = ", ".join(f"`{source}:{cls.__name__}`" for cls in candidates or classes)
    raise CommandError(f"`{source}` defines several modules. Name one of them: {names}.")


def _find_agent(loaded: ModuleType, name: str, source: str) -> type[Agent] | Agent:
    value = getattr(loaded, name, None)
    if is_instance(value) or _is_module_class(value):
        return value
    names = ", ".join(f"`{cls.__name__}`" for cls in _module_classes(loaded)) or "none"
    problem = f"has no `{name}`" if value is None else f"has a `{name}` that is not a module"
    raise CommandError(f"`{source}` {problem}. Its modules: {names}.")


# Stores

STORE_VARIABLE = "ACORN_STORE"
DEFAULT_STORE = Path(".acorn/runs.db")
STORE_HELP = f"The store of the runs. Default: `{STORE_VARIABLE}`, or `{DEFAULT_STORE}` if it exists."
_GENERATED_ID = re.compile(r"[0-9a-f]{32}")


@contextmanager
def as_usage_error() -> Generator[None]:
    """Report the errors of a store as one line."""
    try:
        yield
    except (InputError, StoreError) as error:
        raise CommandError(error_message(error)) from error


def choose_store(option: str | None, declared: Any = None) -> Any:
    """Return the store of a command, not yet opened: the option, the environment, the declared one, the default file.

    A declared store may be an object. Returns None if there is no store.
    """
    default = str(DEFAULT_STORE) if DEFAULT_STORE.exists() else None
    return option or os.environ.get(STORE_VARIABLE) or declared or default


def open_chosen_store(option: str | None) -> Store:
    """Open the store of a command that reads runs; it must exist."""
    chosen = choose_store(option)
    if chosen is None:
        raise CommandError(f"There is no store here. Name one, as in `--store runs.db`, or set `{STORE_VARIABLE}`.")
    if isinstance(chosen, str) and "://" not in chosen and chosen != "memory" and not Path(chosen).exists():
        raise CommandError(
            f"There is no store `{chosen}`. A run creates one, as in `acorn run agent.py --store {chosen}`."
        )
    return _open(chosen)


def open_checked_store(chosen: str | Path | Store) -> Store:
    """Open the store of a server and read from it, so that an error is reported before the first run."""
    store = _open(chosen)
    with as_usage_error():
        store.list(limit=1)
    return store


def _open(chosen: str | Path | Store) -> Store:
    try:
        return open_store(chosen, "`--store`")
    except AcornError as error:
        raise CommandError(error_message(error)) from error


# Runs


def find_run_id(store: Store, prefix: str) -> str:
    """Return the id of the one run that begins with a prefix."""
    with as_usage_error():
        ids = store.find(prefix)
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise CommandError(f"There is no run `{prefix}` in {store.name}. `acorn runs` lists the runs.")
    listed = ", ".join(f"`{run_id}`" for run_id in ids[:5])
    raise CommandError(f"`{prefix}` matches {len(ids)} runs: {listed}{', ...' if len(ids) > 5 else ''}")


def short_id(run_id: str) -> str:
    """Shorten an id that acorn generated to its first characters."""
    return run_id[:8] if _GENERATED_ID.fullmatch(run_id) else run_id


def load_stored_agent(stored: StoredRun, store: Store, target: str | None, debug: bool) -> Agent:
    """Load the agent of a stored run with its settings; `target` names its class if it has moved."""
    source, _, name = stored.header.agent.partition(":")
    file, settings = stored_instance(stored)
    if target is None and not name.isidentifier():
        raise CommandError(
            f"The class `{name}` cannot be imported, because it is defined inside a function or a class. "
            f"Call `resume` in its own program, or name a class by `--agent`."
        )
    try:
        agent = load_agent(
            target or (f"{file}:{name}" if file and Path(file).is_file() else f"{source}:{name}"), debug=debug
        )
    except CommandError as error:
        if target is None:
            reason = str(error).rstrip(".")
            message = f"Cannot load the class of the run ({reason}). Name its place by `--agent FILE:CLASS`."
            raise CommandError(message, error.code, debug=debug) from error
        raise
    try:
        return agent.using(store=store, **settings)
    except (AcornError, TypeError) as error:
        raise CommandError(error_message(error), debug=debug) from error


def parse_value(text: str) -> Any:
    """Parse an answer or a result of the user: JSON if it is valid JSON, otherwise text."""
    try:
        return json.loads(text)
    except ValueError:
        return text

"""Loading of the agent, the store and the run that the arguments of a command refer to.

A target such as `agent.py:Researcher` refers to an agent. A Python file is imported so that it can import the other
files in its directory, as with `python file.py`. A dotted name is imported from the current directory, as with
`python -m`. Errors in the user's code are reported with their file and line.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any, TypeGuard, TypeVar

from acorn import AcornError, Run, StoreError, module
from acorn._inside import is_instance, read_spec, stored_instance, stored_target, with_stored_settings
from acorn.cli.errors import CommandError, error_message, error_text, os_errors, user_code_line
from acorn.cli.text import one_line
from acorn.stores.open import check_no_parameters, open_store
from acorn.stores.port import Store, StoredRun
from acorn.types import JsonObject

Agent = module[Any, Any]
T = TypeVar("T")

_TARGET = re.compile(r"(?P<source>.+?):(?P<name>[^\W\d]\w*)")


# Agents


def load_agent(target: str, *, once: bool = False) -> Agent:
    """Import the target and return its agent: the named instance, or a new instance of the named class.

    If `once` is true, a file that was loaded before is not executed again. Several targets in the same file then share
    their classes, and therefore also the limits of these classes.
    """
    source, name = _split_target(target)
    if Path(source).is_dir():
        raise CommandError(f"`{source}` is a directory. Use the path of a Python file, such as `agent.py`.")
    is_file = source.endswith(".py") or os.sep in source or Path(source).is_file()
    loaded = _load_file(Path(source), once) if is_file else _load_module(source)
    agent_or_class = _find_agent(loaded, name, source) if name else _only_class(loaded, source)
    if isinstance(agent_or_class, module):
        return agent_or_class
    return _run_user_code(agent_or_class, loaded, f"`{agent_or_class.__name__}()` failed")


def _split_target(target: str) -> tuple[str, str | None]:
    if Path(target).exists():
        return target, None
    if target.endswith(":"):
        raise CommandError(f"`{target}` has no class name. Add one after the colon, or remove the colon.")
    match = _TARGET.fullmatch(target)
    return (match["source"], match["name"]) if match else (target, None)


def _load_file(file: Path, once: bool) -> ModuleType:
    if not file.is_file():
        raise CommandError(f"There is no file `{file}`.{_suggest_file(file)}")
    file = file.resolve()
    sys.path.insert(0, str(file.parent))
    # Use the name of the file, so that the other files in its directory can import it. Never replace another module.
    name = file.stem
    loaded_before = sys.modules.get(name)
    if not name.isidentifier() or (loaded_before and getattr(loaded_before, "__file__", None) != str(file)):
        name = f"acorn_run_{file.stem}"
        loaded_before = sys.modules.get(name)
    if once and loaded_before is not None and loaded_before.__file__ == str(file):
        return loaded_before
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise CommandError(
            f"`{file.name}` is not a Python file. Use a file that ends in `.py`, or the name of a Python module."
        )
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    _run_user_code(partial(spec.loader.exec_module, loaded), loaded, f"Cannot import `{file.name}`")
    return loaded


def _suggest_file(file: Path) -> str:
    similar = get_close_matches(file.name, [path.name for path in file.parent.glob("*.py")], 1)
    return f" Did you mean `{file.with_name(similar[0])}`?" if similar else " Check the path."


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return _run_user_code(partial(importlib.import_module, name), None, f"Cannot import `{name}`")
    except CommandError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{name}.".startswith(f"{cause.name}."):
            raise CommandError(
                f"There is no Python module `{cause.name}`. Use a file such as `agent.py`, or a module that Python can "
                f"import from this directory."
            ) from cause
        raise


def _run_user_code(function: Callable[[], T], loaded: ModuleType | None, failure: str) -> T:
    """Call a function that executes the user's code, and return its result.

    If the code raises an error, raise a `CommandError` with the file and line of the error. `failure` is the beginning
    of the error message.
    """
    try:
        return function()
    except SystemExit as error:
        raise CommandError(
            f"{user_code_line(error, loaded)}{failure}: the code ends the program. "
            f"Put the code below `if __name__ == '__main__':`."
        ) from error
    except Exception as error:  # The user's code can raise any exception.
        reason = error_message(error) if isinstance(error, AcornError) else error_text(error)
        if isinstance(error, SyntaxError) and error.lineno is not None:
            reason = f"{type(error).__name__}: {error.msg}"
        raise CommandError(f"{user_code_line(error, loaded)}{failure}: {reason}") from error


def _module_classes(loaded: ModuleType) -> list[type[Agent]]:
    """Return the agent classes that a Python module defines.

    If the module defines no agent class, return the agent classes that it imports.
    """
    classes = list(dict.fromkeys(value for value in vars(loaded).values() if _is_module_class(value)))
    return [cls for cls in classes if cls.__module__ == loaded.__name__] or classes


def _is_module_class(value: object) -> TypeGuard[type[Agent]]:
    return isinstance(value, type) and issubclass(value, module) and value is not module


def _only_class(loaded: ModuleType, source: str) -> type[Agent]:
    """Return the only agent class that is neither a branch nor a tool of another agent class.

    Raises a `CommandError` if there is no such class, or more than one.
    """
    classes = _module_classes(loaded)
    used = [agent for cls in classes for agent in read_spec(cls).startable if agent is not cls]
    candidates = [cls for cls in classes if cls not in used]
    if len(candidates) == 1:
        return candidates[0]
    if not classes:
        raise CommandError(f"`{source}` defines no module. Add a class that inherits from `acorn.module`.")
    names = ", ".join(f"`{source}:{cls.__name__}`" for cls in candidates or classes)
    raise CommandError(f"`{source}` defines several modules. Use one of these targets: {names}.")


def _find_agent(loaded: ModuleType, name: str, source: str) -> type[Agent] | Agent:
    value = getattr(loaded, name, None)
    if is_instance(value) or _is_module_class(value):
        return value
    names = ", ".join(f"`{cls.__name__}`" for cls in _module_classes(loaded)) or "none"
    problem = f"has no `{name}`" if value is None else f"has a `{name}` that is not a module"
    raise CommandError(f"`{source}` {problem}. It has these modules: {names}.")


# Stores

STORE_VARIABLE = "ACORN_STORE"
DEFAULT_STORE = Path(".acorn/runs.db")
_GENERATED_ID = re.compile(r"[0-9a-f]{32}")


def choose_store(option: str | None, declared: Any = None) -> Any:
    """Return the store that a command uses, but do not open it. Return None if there is no store.

    The first of these stores is used: the option `--store`, the environment variable, the store that the agent declares
    (which may be an object), and the default file if it exists.
    """
    default = str(DEFAULT_STORE) if DEFAULT_STORE.exists() else None
    return option or os.environ.get(STORE_VARIABLE) or declared or default


def create_default_store() -> str:
    """Create the directory of the default store, which Git ignores, and return the path of the store."""
    folder = DEFAULT_STORE.parent
    if not folder.exists():
        folder.mkdir(mode=0o700)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    return str(DEFAULT_STORE)


def open_chosen_store(option: str | None) -> Store:
    """Open the store for a command that reads stored runs.

    Raises a `CommandError` if the store does not exist.
    """
    chosen = choose_store(option)
    if chosen is None:
        raise CommandError(
            f"There is no store here. Use `--store`, as in `--store runs.db`, or set the environment variable "
            f"`{STORE_VARIABLE}`."
        )
    check_no_parameters(chosen, "`--store`")
    if isinstance(chosen, str) and "://" not in chosen and chosen != "memory" and not Path(chosen).exists():
        raise CommandError(
            f"There is no store `{chosen}`. To create it, start a run: `acorn run agent.py --store {chosen}`."
        )
    return open_store(chosen, "`--store`")


def store_option(chosen: object) -> str:
    """Return the option `--store` of a printed command, with a leading space and without the password of a URL.

    Return an empty text if the user did not name the store by a path or URL.
    """
    if not isinstance(chosen, str | Path):
        return ""
    name = open_store(chosen, "`--store`").name if "://" in str(chosen) else str(chosen)
    return f" --store {quote(name)}"


def store_of(source: str, option: str | None) -> Store | None:
    """Open the store that contains a run, or return None if the run is in a file.

    `source` is the id of a stored run, or the path of a file with a saved run.
    """
    if Path(source).is_file():
        return None
    if choose_store(option) is None:
        raise CommandError(
            f"There is no file `{source}`, and there is no store here. If `{source}` is a stored run, use `--store`."
        )
    return open_chosen_store(option)


def open_checked_store(chosen: str | Path | Store) -> Store:
    """Open the store that a server uses, and read from it, so that errors are reported before the first run."""
    store = open_store(chosen, "`--store`")
    store.list(limit=1)
    return store


# Runs


def find_run_id(store: Store, prefix: str) -> str:
    """Return the id of the only stored run with an id that starts with a prefix.

    Raises a `CommandError` if there is no such run, or more than one.
    """
    ids = store.find(prefix)
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise CommandError(f"There is no run `{prefix}` in {store.name}. `acorn runs` lists the runs.")
    listed = ", ".join(f"`{run_id}`" for run_id in ids[:5])
    raise CommandError(
        f"`{prefix}` matches {len(ids)} runs: {listed}{', ...' if len(ids) > 5 else ''}. Use more characters of the id."
    )


def short_id(run_id: str) -> str:
    """Return the first 8 characters of an id that acorn generated. Return an id that a user chose unchanged."""
    return run_id[:8] if _GENERATED_ID.fullmatch(run_id) else run_id


def load_stored_agent(stored: StoredRun, store: Store, target: str | None, command: str) -> Agent:
    """Load the agent that the user named for a stored run, with the stored settings.

    The class that the store names is only a hint in the error message, because a store is data: importing the class
    would execute any file that the store names. `command` is the command without its option `--agent`.
    """
    if target is None:
        name = stored.header.agent.rpartition(":")[2]
        if not name.isidentifier():
            raise CommandError(
                f"The class `{one_line(name)}` of the run is defined inside a function or a class. Call `resume` in "
                f"the program that defines the class, or choose another class with `--agent FILE:CLASS`."
            )
        raise CommandError(
            f"The command needs the agent of the run, because acorn imports no file that a store names. If you trust "
            f"this file, use: {command} --agent {quoted_target(stored)}"
        )
    return with_stored_settings(load_agent(target), stored, store)


def quoted_target(stored: StoredRun) -> str:
    """Return the target that a store names as the agent of a run, quoted for a command that acorn prints."""
    return quote(one_line(stored_target(stored.header.agent, stored_instance(stored).file), 1000))


def change_settings(agent: Agent, **settings: object) -> Agent:
    """Return a copy of an agent with those settings that are not None, or the agent itself if all are None."""
    changes: JsonObject = {name: value for name, value in settings.items() if value is not None}
    return agent.using(**changes) if changes else agent


def read_run_file(file: str) -> Run:
    """Read a run from a file that `acorn run --save` or `run.to_json()` wrote."""
    try:
        with os_errors(f"Cannot read `{file}`"):
            return Run.from_json(Path(file).read_text(encoding="utf-8"))
    except (StoreError, UnicodeDecodeError) as error:
        reason = str(error).removeprefix("Cannot read the saved run: ")
        raise CommandError(f"`{file}` is not a saved run: {reason}") from error

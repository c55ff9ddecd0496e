"""Check an installed acorn package for `release.py`: `python try_installed.py VERSION [EXTRA]`.

The program prints a JSON list of the acorn modules that cannot be imported because an extra is not installed. Every
other problem ends the program with an error.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

LIGHT = {"acorn", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}


def check_light_import() -> None:
    """Check that `import acorn` loads only Pydantic and the standard library."""
    before = set(sys.modules)
    import acorn

    loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
    heavy = {name for name in loaded - LIGHT - sys.stdlib_module_names if not name.startswith("_")}
    assert not heavy, f"`import acorn` must not load {sorted(heavy)}."
    assert "site-packages" in str(acorn.__file__), f"acorn is not installed, but imported from {acorn.__file__}."
    assert (Path(str(acorn.__file__)).parent / "py.typed").exists(), "The file `py.typed` is missing in the package."


def check_agent() -> None:
    """Run an agent with a scripted model that calls a tool and then answers."""
    from acorn import module, tool
    from acorn.testing import ScriptedModel, call, finish

    @tool
    def add(left: int, right: int) -> int:
        """Add two numbers."""
        return left + right

    class Adder(module):
        """You add numbers."""

        initial_input = ["question"]
        final_output = int
        tools = [add]
        max_steps = 3

    agent = Adder(model=ScriptedModel([call("add", left=2, right=3), finish(5)]))
    assert agent(question="2 + 3?") == 5


def packages_of(extra: str) -> set[str]:
    """Return the set of import names of the packages that an extra installs."""
    is_in_extra = re.compile(rf"extra == ['\"]{extra}['\"]")
    requirements = [requirement for requirement in requires("acorn-agents") or [] if is_in_extra.search(requirement)]
    wanted = {normalize_name(re.split(r"[^\w.-]", requirement)[0]) for requirement in requirements} - {"acorn-agents"}
    distributions = {
        package: {normalize_name(name) for name in names}
        for package, names in packages_distributions().items()
        if package.isidentifier()
    }
    installed = set().union(*distributions.values())
    assert wanted <= installed, f"The extra `{extra}` does not install {sorted(wanted - installed)}."
    return {package for package, names in distributions.items() if names & wanted}


def normalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def missing_modules() -> list[str]:
    """Return the names of the acorn modules that cannot be imported because a package is not installed."""
    import acorn

    missing: list[str] = []
    for candidate in pkgutil.walk_packages(acorn.__path__, "acorn.", onerror=lambda name: None):
        if candidate.name.endswith("__main__"):
            continue  # The import of `__main__` would start a program.
        try:
            importlib.import_module(candidate.name)
        except ImportError:
            missing.append(candidate.name)
        except acorn.AcornError as error:
            if "pip install 'acorn-agents[" not in str(error):
                raise
            missing.append(candidate.name)
    return missing


def main(version: str, extra: str | None = None) -> None:
    check_light_import()
    import acorn

    assert acorn.__version__ == version, f"acorn {acorn.__version__} is installed instead of acorn {version}."
    check_agent()
    for package in sorted(packages_of(extra)) if extra else []:
        importlib.import_module(package)
    print(json.dumps(missing_modules()))


if __name__ == "__main__":
    main(*sys.argv[1:])

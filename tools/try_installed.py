"""Try the installed acorn: `python try_installed.py VERSION [EXTRA]`, for `release.py`.

It prints the modules of acorn that cannot be imported without a missing extra, as JSON; any other problem is an error.
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


def imports_lightly() -> None:
    """Check that `import acorn` loads only Pydantic and the standard library."""
    before = set(sys.modules)
    import acorn

    loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
    heavy = {name for name in loaded - LIGHT - sys.stdlib_module_names if not name.startswith("_")}
    assert not heavy, f"`import acorn` loads {sorted(heavy)}"
    assert "site-packages" in str(acorn.__file__), f"acorn comes from {acorn.__file__}"
    assert (Path(str(acorn.__file__)).parent / "py.typed").exists(), "py.typed is missing"


def answers() -> None:
    """Run an agent on a script that calls a tool and answers."""
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
    """Return the importable packages that the extra names."""
    named = [each for each in requires("acorn-agents") or [] if re.search(rf"extra == ['\"]{extra}['\"]", each)]
    wanted = {normal(re.split(r"[^\w.-]", each)[0]) for each in named} - {"acorn-agents"}
    found = {
        package: {normal(name) for name in names}
        for package, names in packages_distributions().items()
        if package.isidentifier()
    }
    brought = set().union(*found.values())
    assert wanted <= brought, f"the extra `{extra}` does not bring {sorted(wanted - brought)}"
    return {package for package, names in found.items() if names & wanted}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def missing_modules() -> list[str]:
    """Return the modules of acorn that need a missing package."""
    import acorn

    missing: list[str] = []
    for found in pkgutil.walk_packages(acorn.__path__, "acorn.", onerror=lambda name: None):
        if found.name.endswith("__main__"):
            continue  # Programs.
        try:
            importlib.import_module(found.name)
        except ImportError:
            missing.append(found.name)
        except acorn.AcornError as error:
            if "pip install 'acorn-agents[" not in str(error):
                raise
            missing.append(found.name)
    return missing


def main(version: str, extra: str | None = None) -> None:
    imports_lightly()
    import acorn

    assert acorn.__version__ == version, f"acorn {acorn.__version__} is installed and not {version}"
    answers()
    for package in sorted(packages_of(extra)) if extra else []:
        importlib.import_module(package)
    print(json.dumps(missing_modules()))


if __name__ == "__main__":
    main(*sys.argv[1:])

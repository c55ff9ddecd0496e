"""The bill of materials of an installed package, with all its dependencies, in CycloneDX's JSON.

    python sbom.py acorn-agents       prints it; needs only the standard library
    python sbom.py --judge FILE       checks it with CycloneDX's schema; needs `cyclonedx-python-lib[json-validation]`

Two environments with the same packages have the same bill: it has no date, and its number depends on its content.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

SPEC = "1.6"


def normal(name: str) -> str:
    """Return a package's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def purl(found: Distribution) -> str:
    """Return the package URL."""
    return f"pkg:pypi/{normal(found.metadata['Name'])}@{found.version}"


def needs(found: Distribution) -> list[Distribution]:
    """Return the installed requirements; those of extras and of other systems are not counted."""
    asked = {normal(re.split(r"[^\w.-]", each)[0]) for each in found.requires or [] if "extra ==" not in each}
    return [there for name in sorted(asked) if (there := installed(name)) is not None]


def installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def everything_below(root: Distribution) -> dict[str, Distribution]:
    """Return all dependencies, direct or not, by package URL."""
    found: dict[str, Distribution] = {}
    waiting = needs(root)
    while waiting:
        each = waiting.pop()
        if purl(each) not in found:
            found[purl(each)] = each
            waiting += needs(each)
    return dict(sorted(found.items()))


def component(found: Distribution, kind: str = "library") -> dict[str, Any]:
    told: dict[str, Any] = {
        "type": kind,
        "bom-ref": purl(found),
        "name": found.metadata["Name"],
        "version": found.version,
        "purl": purl(found),
    }
    if summary := field(found, "Summary"):
        told["description"] = summary
    if licence := licence_of(found):
        told["licenses"] = [licence]
    return told


def field(found: Distribution, name: str) -> str:
    """Return a field of the package's metadata, empty if it is missing."""
    return next(iter(found.metadata.get_all(name) or []), "")


def licence_of(found: Distribution) -> dict[str, Any] | None:
    """Return the license expression, otherwise the package's own text if it is a name."""
    if expression := field(found, "License-Expression"):
        return {"expression": expression}
    classifiers = [each for each in found.metadata.get_all("Classifier") or [] if each.startswith("License ::")]
    words = field(found, "License") or (classifiers[0].rpartition(" :: ")[2] if classifiers else "")
    return {"license": {"name": words}} if words and len(words.splitlines()) == 1 else None


def bill(name: str) -> dict[str, Any]:
    """Return the bill of materials of an installed package."""
    root = distribution(name)
    below = everything_below(root)
    edges = [
        {"ref": purl(each), "dependsOn": sorted({purl(need) for need in needs(each)} - {purl(each)})}
        for each in (root, *below.values())
    ]
    told: dict[str, Any] = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {"component": component(root)},
        "components": [component(each) for each in below.values()],
        "dependencies": edges,
    }
    told["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(told, sort_keys=True)).urn
    return told


def judge(path: Path) -> None:
    """Raise if the file is not a valid bill of materials."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text(encoding="utf-8"))
    if wrong is not None:
        sys.exit(f"{path.name} is no CycloneDX {SPEC}: {wrong}")


if __name__ == "__main__":
    if sys.argv[1] == "--judge":
        judge(Path(sys.argv[2]))
    else:
        print(json.dumps(bill(sys.argv[1]), indent=1))

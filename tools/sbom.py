"""Print the bill of materials of an installed package and its dependencies, in the JSON format of CycloneDX.

    python sbom.py acorn-agents       prints the bill of materials; needs only the standard library
    python sbom.py --check FILE       validates a bill of materials; needs `cyclonedx-python-lib[json-validation]`

Two environments with the same packages have the same bill of materials, because it contains no date, and its serial
number is a hash of its content.
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


def normalize_name(name: str) -> str:
    """Return the normalized name of a package, which package indexes use to compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def purl(package: Distribution) -> str:
    """Return the package URL of a package, such as `pkg:pypi/pydantic@2.11.0`."""
    return f"pkg:pypi/{normalize_name(package.metadata['Name'])}@{package.version}"


def installed_requirements(package: Distribution) -> list[Distribution]:
    """Return the installed packages that a package requires, without the requirements of its extras.

    Requirements for other operating systems are not installed, so the list does not contain them either.
    """
    requirements = [requirement for requirement in package.requires or [] if "extra ==" not in requirement]
    names = {normalize_name(re.split(r"[^\w.-]", requirement)[0]) for requirement in requirements}
    return [installed for name in sorted(names) if (installed := find_installed(name)) is not None]


def find_installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def all_dependencies(root: Distribution) -> dict[str, Distribution]:
    """Return a dict that maps package URLs to all direct and indirect dependencies of a package."""
    dependencies: dict[str, Distribution] = {}
    pending = installed_requirements(root)
    while pending:
        package = pending.pop()
        if purl(package) not in dependencies:
            dependencies[purl(package)] = package
            pending += installed_requirements(package)
    return dict(sorted(dependencies.items()))


def component(package: Distribution, kind: str = "library") -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": kind,
        "bom-ref": purl(package),
        "name": package.metadata["Name"],
        "version": package.version,
        "purl": purl(package),
    }
    if summary := field(package, "Summary"):
        entry["description"] = summary
    if license_entry := license_of(package):
        entry["licenses"] = [license_entry]
    return entry


def field(package: Distribution, name: str) -> str:
    """Return the first value of a metadata field of a package, or "" if the field is missing."""
    return next(iter(package.metadata.get_all(name) or []), "")


def license_of(package: Distribution) -> dict[str, Any] | None:
    """Return the license entry of a package, or None if the metadata contains no short license name.

    A license expression has priority over the `License` field and over the classifiers.
    """
    if expression := field(package, "License-Expression"):
        return {"expression": expression}
    classifiers = [text for text in package.metadata.get_all("Classifier") or [] if text.startswith("License ::")]
    name = field(package, "License") or (classifiers[0].rpartition(" :: ")[2] if classifiers else "")
    return {"license": {"name": name}} if name and len(name.splitlines()) == 1 else None


def bill(name: str) -> dict[str, Any]:
    """Return the bill of materials of an installed package as JSON data."""
    root = distribution(name)
    dependencies = all_dependencies(root)
    edges = [
        {
            "ref": purl(package),
            "dependsOn": sorted({purl(required) for required in installed_requirements(package)} - {purl(package)}),
        }
        for package in (root, *dependencies.values())
    ]
    document: dict[str, Any] = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {"component": component(root)},
        "components": [component(package) for package in dependencies.values()],
        "dependencies": edges,
    }
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True)).urn
    return document


def check(path: Path) -> None:
    """Exit with an error message if a file is not a valid bill of materials."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text(encoding="utf-8"))
    if error is not None:
        sys.exit(f"`{path.name}` is not a valid CycloneDX {SPEC} document: {error}")


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        check(Path(sys.argv[2]))
    else:
        print(json.dumps(bill(sys.argv[1]), indent=1))

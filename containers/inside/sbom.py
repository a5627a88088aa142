"""Print the bill of materials of an image as CycloneDX: Debian and Python packages, their licences,
without a date.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

DOCUMENTS = Path("/usr/share/doc")
QUERY = ("dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${Architecture}\n")


def component(kind: str, name: str, version: str, query: str = "") -> dict[str, str]:
    """Return the entry of one package, with its package URL."""
    url = f"pkg:{kind}/{name}@{version.replace('+', '%2B').replace(':', '%3A')}{query}"
    return {"type": "library", "name": name, "version": version, "purl": url}


def licences(package: metadata.PackageMetadata) -> list[dict[str, object]]:
    """Return the licences that a Python package names: an SPDX expression, or else its classifiers
    or its words.
    """
    expression = package.get("License-Expression")
    if expression:
        return [{"expression": expression}]
    classifiers = package.get_all("Classifier") or []
    names = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License ::")]
    names = names or [(package.get("License") or "").strip().partition("\n")[0]]
    return [{"license": {"name": name}} for name in names if name]


def debian_licences(name: str, folder: Path = DOCUMENTS) -> list[dict[str, object]]:
    """Return the licences that the copyright file of a Debian package names.

    A file in the machine-readable format (DEP-5) has a field for each; of another one, those that
    it refers to in /usr/share/common-licenses are taken.
    """
    file = folder / name / "copyright"
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8", errors="replace")
    names = re.findall(r"(?m)^License:[ \t]*(\S.*?)\s*$", text) if text.startswith("Format") else []
    names = names or re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9+])", text)
    return [{"license": {"name": each}} for each in sorted(set(names))]


def distribution_id() -> str:
    """Return the id of the Linux distribution, such as debian or ubuntu."""
    match = re.search(r'^ID="?(\w+)', Path("/etc/os-release").read_text(), re.MULTILINE)
    return match[1] if match else "linux"


def debian_packages(unpacked: Path) -> list[list[str]]:
    """Return name, version and architecture of the packages of dpkg's list and of those in
    `unpacked`.
    """
    lines = subprocess.check_output(QUERY, text=True).splitlines()
    # Packages that containers/lib/layer.py unpacked over a base are not in dpkg's list.
    lines += unpacked.read_text().splitlines() if unpacked.exists() else []
    return list({line.split("\t")[0]: line.split("\t") for line in lines}.values())


def main(lock: Path) -> None:
    """Print the bill of materials of this root file system and of the Python that runs this."""
    system = distribution_id()
    debian: list[dict[str, object]] = [
        {
            **component("deb", f"{system}/{name}", version, f"?arch={architecture}"),
            "licenses": debian_licences(name),
        }
        for name, version, architecture in debian_packages(lock.with_name("debs.txt"))
    ]
    installed = {
        re.sub(r"[-_.]+", "-", package.name).lower(): package
        for package in metadata.distributions()
    }
    python: list[dict[str, object]] = [
        {**component("pypi", name, package.version), "licenses": licences(package.metadata)}
        for name, package in installed.items()
    ]
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    properties = {"aam:lock-sha256": digest, "aam:python": platform.python_version()}
    properties["aam:glibc"] = platform.libc_ver()[1]
    listed = [{"name": name, "value": value} for name, value in properties.items()]
    components = [*debian, *python]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"properties": listed},
        "components": sorted(components, key=lambda entry: str(entry["purl"])),
    }
    print(json.dumps(bill, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

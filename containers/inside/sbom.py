"""Print what an image is made of as CycloneDX: Debian and Python packages and versions, and nothing of the time."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

QUERY = ("dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${Architecture}\n")


def component(kind: str, name: str, version: str, query: str = "") -> dict[str, str]:
    """One package with its package URL."""
    url = f"pkg:{kind}/{name}@{version.replace('+', '%2B').replace(':', '%3A')}{query}"
    return {"type": "library", "name": name, "version": version, "purl": url}


def system() -> str:
    """The distribution's id, such as debian or ubuntu."""
    found = re.search(r'^ID="?(\w+)', Path("/etc/os-release").read_text(), re.MULTILINE)
    return found[1] if found else "linux"


def main(lock: Path) -> None:
    """Write the bill of materials of this root file system and of the Python that runs this."""
    rows = {line.split("\t")[0]: line.split("\t") for line in subprocess.check_output(QUERY, text=True).splitlines()}
    # Packages that were unpacked over a base (parts/layer.py) are not in its own list.
    added = lock.with_name("debs.txt")
    rows |= {line.split("\t")[0]: line.split("\t") for line in added.read_text().splitlines()} if added.exists() else {}
    debian = [component("deb", f"{system()}/{name}", version, f"?arch={arch}") for name, version, arch in rows.values()]
    installed = {re.sub(r"[-_.]+", "-", each.name).lower(): each.version for each in metadata.distributions()}
    python = [component("pypi", name, version) for name, version in installed.items()]
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    properties = {
        "aam:lock-sha256": digest,
        "aam:python": platform.python_version(),
        "aam:glibc": platform.libc_ver()[1],
    }
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"properties": [{"name": name, "value": value} for name, value in properties.items()]},
        "components": sorted([*debian, *python], key=lambda each: each["purl"]),
    }
    print(json.dumps(bill, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

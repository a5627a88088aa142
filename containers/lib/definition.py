"""A definition of an image: its sections, its arguments, and the packages that it installs."""

from __future__ import annotations

import re
from pathlib import Path

from containers.lib.errors import InputError
from containers.lib.files import write_text


def section(definition: Path, name: str) -> str:
    """Return the lines of one section of a definition."""
    match = re.search(rf"(?ms)^%{name}\n(.*?)(?=^%|\Z)", definition.read_text(encoding="utf-8"))
    if not match:
        raise InputError(f"{definition}: has no section %{name}")
    return match[1]


def arguments(definition: Path) -> dict[str, str]:
    """Return the arguments of a definition with their defaults: what an image is pinned to."""
    return dict(re.findall(r"(?m)^    (\w+)=(.*)$", section(definition, "arguments")))


def set_argument(definition: Path, name: str, value: str) -> None:
    """Write another default of an argument, and leave the rest of the definition as it is."""
    text = definition.read_text(encoding="utf-8")
    write_text(definition, re.sub(rf"(?m)^(    {name}=).*$", rf"\g<1>{value}", text, count=1))


def fill(text: str, values: dict[str, str]) -> str:
    """Return the text of a definition, or of a section, with its arguments filled in."""
    return re.sub(r"{{ (\w+) }}", lambda match: values[match[1]], text)


def packages(definition: Path, values: dict[str, str]) -> list[str]:
    """Return the Debian packages that a definition installs."""
    post = fill(section(definition, "post").replace("\\\n", " "), values)
    return str(re.findall(r"apt-get install .*--no-install-recommends (.*)", post)[0]).split()

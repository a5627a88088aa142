"""Every link, make target, nox session and file that a page names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
# The pages of docs/reference that come from the code are made when the site is built.
PAGES = sorted(
    [*(ROOT / name for name in TOP), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")]
)
MADE = ("options.md", "names.md", "notebook.md")
PAGES = [page for page in PAGES if page.name not in MADE]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def heading_id(line: str) -> str:
    return re.sub(r"[^\w\- ]", "", line.lstrip("# ").strip().lower()).replace(" ", "-")


@each_page
def test_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        if "://" in name or name.startswith("mailto:"):
            continue
        path = (page.parent / name) if name else page
        if path.name in MADE and path.parent.name == "reference":
            continue
        assert path.exists(), target
        if anchor:
            ids = [
                heading_id(line) for line in path.read_text().splitlines() if line.startswith("#")
            ]
            assert anchor in ids, target


@each_page
def test_make_targets(page):
    targets = set(re.findall(r"(?m)^([a-z][a-z-]*)\b.*:", (ROOT / "Makefile").read_text()))
    targets |= {
        f"{verb}-{flavour}" for verb in ("verify", "oci") for flavour in ("rocm", "cuda", "cpu")
    }
    named = set(re.findall(r"(?m)(?:^    |`)make ([a-z][a-z-]*[a-z])", page.read_text()))
    assert named - targets == set()


@each_page
def test_nox_sessions(page):
    sessions = set(
        re.findall(r"(?m)^def (\w+)\(session: nox\.Session", (ROOT / "noxfile.py").read_text())
    )
    named = set(re.findall(r"nox -s ([a-z_0-9]+)", page.read_text()))
    assert named - sessions == set()


@each_page
def test_files_of_the_images(page):
    built = r"(aam-(rocm|cuda|cpu)\.(sif|sif\.json|squashfs)|\{|\*)"
    for name in re.findall(r"`(containers/[\w./{},-]+)`", page.read_text()):
        assert re.search(built, name) or (ROOT / name).exists(), name


def test_files_that_the_architecture_names():
    folder = ""
    names = re.findall(r"`([\w./]+\.(?:py|j2|toml))", (ROOT / "docs/architecture.md").read_text())
    assert len(names) > 40
    missing = []
    for name in names:
        path = name if "/" in name else f"{folder}/{name}"
        folder = path.rpartition("/")[0] if "/" in name else folder
        places = (
            ROOT / "aam" / path,
            ROOT / path,
            ROOT / "aam" / name,
            ROOT / "aam" / "engine" / name,
        )
        if not any(place.exists() for place in places):
            missing.append(name)
    assert not missing, missing

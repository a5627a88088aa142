"""The figures of the pages: all come from docs/results.json, and a changed digit is noticed."""

from __future__ import annotations

import datetime
import importlib
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]

# Decimals of a page that no run measured: limits, examples, versions.
STATED = {"0.01", "0.05", "0.09", "24.04", "22.05", "3.10", "3.11", "3.12", "3.13", "2.11", "2.13"}


def docs_module(name: str) -> ModuleType:
    """A module of docs, which is no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module(name)


PAGES = docs_module("pages")
VALUES = PAGES.read_values()
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES.pages()}


def name_of(page: Path) -> str:
    """The name of a page in docs/sentences.toml."""
    return page.relative_to(ROOT).as_posix()


PLACES = {page: PAGES.places(name_of(page), text) for page, text in TEXTS.items()}
each_page = pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))


@each_page
def test_a_page_has_the_figures_of_the_records(page):
    assert not PAGES.stale(name_of(page), TEXTS[page], VALUES), "run: python docs/pages.py"


@each_page
def test_each_digit_of_a_place_is_checked(page):
    text = TEXTS[page]
    for place in PLACES[page]:
        for digit in re.finditer(r"\d", text[place.start : place.end]):
            at = place.start + digit.start()
            other = str((int(digit[0]) + 1) % 10)
            changed = text[:at] + other + text[at + 1 :]
            stale = PAGES.stale(name_of(page), changed, VALUES)
            assert stale == [place.name], (place.name, digit.start())


def test_a_sentence_that_a_page_lacks_is_named():
    with pytest.raises(ValueError, match=r"README\.md has 0 times, expected once: The mean error"):
        PAGES.places("README.md", "A page without figures.")


def test_sentences_have_no_comments():
    commented = PAGES.COMMENTED
    lines = [line for text in TEXTS.values() for line in text.splitlines()]
    assert not [line for line in lines if commented.search(line) and not line.startswith("|")]


def test_the_label_curve_is_drawn_from_the_records():
    svg = PAGES.label_curve(VALUES)
    assert PAGES.CURVE.read_text(encoding="utf-8") == svg, "run: python docs/pages.py"
    root = ElementTree.fromstring(svg)
    lines = root.findall("{*}polyline")
    assert len(lines) == sum(len(VALUES["label-curve"][name]["curves"]) for name in PAGES.PANELS)
    for line in lines:
        places = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
        assert all(0 < x < PAGES.SIZE[0] and 0 < y < PAGES.SIZE[1] for x, y in places)


def test_there_are_places_to_check():
    names = [place.name for places in PLACES.values() for place in places]
    assert len(names) > 60
    assert set(PAGES.TABLES) <= set(names)
    assert sum(map(bool, PLACES.values())) > 8


@each_page
def test_no_measured_decimal_is_typed(page):
    text = TEXTS[page]
    for place in reversed(PLACES[page]):
        text = text[: place.start] + text[place.end :]
    text = re.sub(r"(?ms)^```.*?^```$|^ {4,}.*?$|`[^`\n]*`", "", text)
    typed = re.findall(r"(?<![\w./-])\d+\.\d{2,}(?![\w./]|-\w)", text)
    assert set(typed) <= STATED, set(typed) - STATED


def test_pages_are_short():
    words = {page: len(text.split()) for page, text in TEXTS.items()}
    assert words[ROOT / "README.md"] <= 650
    assert sum(n for page, n in words.items() if page.parent.name != "reference") <= 14_500


def test_each_record_says_where_it_comes_from():
    records = PAGES.read_records()
    for name, record in records.items():
        assert record["command"], name
        assert record["commit"], name
        assert record["machine"], name
        assert datetime.date.fromisoformat(record["date"]) > datetime.date(2026, 11, 1), name
        assert ("values" in record) != ("file" in record), name
        assert "/" not in record["command"].split()[0], name
        assert not re.search(r"(?<!\w)/(?:tmp|work|home|root)/", str(record)), name


def test_make_results_trains_what_its_tables_show():
    runs = docs_module("results").RUNS
    tables = {**PAGES.TASKS, **PAGES.DISEASES}
    assert set(tables) <= set(runs)
    assert set(runs) <= set(PAGES.read_records())


def test_a_figure_that_does_not_exist_is_named():
    with pytest.raises(KeyError, match=r"demo\.wrong"):
        PAGES.figure("demo.wrong", VALUES)


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.7041, "", "0.704"),
        (2.5218, "", "2.52"),
        (0.0004, "", "<0.001"),
        (-0.03, "", "-0.030"),
        (0.0, "", "0.000"),
        (13715, "", "13,715"),
        (None, "", "-"),
        (0.013, ".1%", "1.3 %"),
        (3, "word", "three"),
        ("a name", "", "a name"),
    ],
)
def test_numbers_as_pages_show_them(value, form, text):
    assert PAGES.text(value, form) == text


# --- names of files ------------------------------------------------------------------------------

# Folders of the repository, with which the name of a file begins.
FOLDERS = "aam|benchmarks|containers|docs|examples|plugins|slurm|tests"
NAMED = re.compile(
    rf"(?<![\w./])((?:{FOLDERS})/[\w./-]*\w\.(?:py|md|toml|json|yml|sh|def|txt|tsv))\b"
)
# Made by a build or a run.
MADE = re.compile(r"aam-(?:rocm|cuda|cpu)\.|docs/reference/(?:options|names|notebook)\.md")

SOURCES = [
    *TEXTS,
    *ROOT.glob(".github/workflows/*.yml"),
    *(ROOT / name for name in ("pyproject.toml", "CONTRIBUTING.md", "noxfile.py", "Makefile")),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(source):
    named = set(NAMED.findall(source.read_text(encoding="utf-8")))
    missing = [name for name in named if not MADE.search(name) and not (ROOT / name).exists()]
    assert not missing, missing


def test_tests_that_tickets_name_exist():
    text = (ROOT / "docs" / "tickets.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
    tracked = listed.stdout.decode().splitlines()
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`((?:\w+/)*tests(?:/[\w./-]+)?)`", row[2])
        for name in named:
            inside = [path for path in tracked if path == name or path.startswith(f"{name}/")]
            assert any(Path(path).name.startswith("test_") for path in inside), name
        assert named, row[0]

"""The documentation: its commands run, its pages name every file and column, and the site builds."""

from __future__ import annotations

import ast
import csv
import importlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

import aam
from aam.cli import COMMANDS
from aam.options import options_of
from tests.programs import run_program, with_sources, write_program

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIAL, SECOND = DOCS / "tutorial" / "index.md", DOCS / "tutorial" / "null.md"
NEW_STUDY = DOCS / "new-study.md"
PAGES = [*DOCS.rglob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING"))]
MADE = ("options.md", "names.md", "notebook.md")  # by docs/make_reference.py
# Pages whose links and names are checked too.
LINKED = [*PAGES, ROOT / "CHANGELOG.md", *ROOT.glob("examples/*/README.md")]
LINKED = [page for page in LINKED if page.name not in MADE]
each_page = pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))

# Tests learn for one epoch with a small network where a page leaves the length of training to its
# default, not for models of studies, ...
SHIM = f"""#!/bin/bash
more="--epochs 1 --embedding-dim 32 --attention-layers 1"
case " $* " in *" --epochs "*|*" --study-column "*) more="" ;; esac
case "$1" in pretrain|train) more="$more --threads 1" ;; *) more="" ;; esac
exec {sys.executable} -m aam "$@" $more
"""

# ... but for the tutorial, whose figures are tested and which trains no network.
THREADS_ONLY = f"""#!/bin/bash
case "$1" in train) more="--threads 1" ;; *) more="" ;; esac
exec {sys.executable} -m aam "$@" $more
"""


def commands_of(page: Path) -> list[str]:
    """The blocks of commands that a reader runs."""
    return re.findall(r"(?ms)^```bash\n(.*?)^```$", page.read_text(encoding="utf-8"))


def run_page(page: Path, folder: Path, program: str = SHIM) -> str:
    """Run the commands of a page one after the other in a copy of what it needs; return what they
    print.
    """
    programs = folder / "bin"
    write_program(programs / "aam", program)
    write_program(programs / "python", f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    for study in ("docs/tutorial/qiime2-crc", "examples/infant-age"):
        shutil.copytree(ROOT / study, folder / study)
    path = os.pathsep.join((str(programs), os.environ["PATH"]))
    environment = with_sources(PATH=path)
    script = "set -euo pipefail\n" + "\n".join(commands_of(page))
    done = run_program("bash", "-c", script, cwd=folder, env=environment)
    return done.stdout + done.stderr


# --- names -------------------------------------------------------------------------------------


def heading_id(line: str) -> str:
    return re.sub(r"[^\w\- ]", "", line.lstrip("# ").strip().lower()).replace(" ", "-")


@each_page
def test_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        path = (page.parent / name) if name else page
        is_made = path.name in MADE and path.parent.name == "reference"
        if "://" in name or name.startswith("mailto:") or is_made:
            continue
        assert path.exists(), target
        lines = path.read_text().splitlines() if anchor else []
        assert not anchor or anchor in map(heading_id, lines), target


@each_page
def test_sessions_and_files_exist(page):
    text = page.read_text()
    sessions = re.findall(r"(?m)^def (\w+)\(session", (ROOT / "noxfile.py").read_text())
    assert set(re.findall(r"nox -s ([a-z_0-9]+)", text)) <= set(sessions)
    built = r"(aam-(rocm|cuda|cpu)\.(sif|sif\.json|squashfs)|\{|\*)"
    for name in re.findall(r"`((?:benchmarks|containers|examples|slurm|tests)/[\w./{},-]+)`", text):
        assert re.search(built, name) or (ROOT / name).exists(), name


def test_each_session_is_listed_with_a_whole_sentence():
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    sessions = [node for node in functions if node.decorator_list]
    assert len(sessions) > 10
    for node in sessions:
        first_line = (ast.get_docstring(node) or "").splitlines()[0]
        assert first_line.endswith("."), f"{node.name}: {first_line}"


def test_files_that_the_architecture_names():
    """They stand below aam/ or at the top, and each folder of aam/ is a layer of the table."""
    text = (ROOT / "docs/architecture.md").read_text()
    names = re.findall(r"`([\w./-]+(?:\.(?:py|j2|toml|def|sh|txt)|/))[`:]", text)
    assert len(names) > 60
    absences = [
        name for name in names if not any((ROOT / top / name).exists() for top in ("aam", ""))
    ]
    assert absences == []
    layers = {
        name.strip("`")
        for line in text.splitlines()
        for name in line.split("|")[1:2]
        for name in name.split(", ")
    }
    folders = {path.parent.name for path in (ROOT / "aam").glob("*/__init__.py")}
    assert folders - {"tools"} <= {layer.strip(" `") for layer in layers}


def test_options_of_the_pages_exist():
    """Every option that stands in a command of a page is one of that command."""
    checked = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"(?m)^ *aam (\w+ .*)$", text):
            command, *words = re.sub(r"#.*", "", line).split()
            if command not in COMMANDS:
                continue
            options = options_of(COMMANDS[command].default())
            names = {"--config", *(each.name for each in options)}
            given = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert given <= names, (page.name, command, given - names)
            checked += 1
    assert checked > 20


def test_words_of_options_exist():
    """Every `--option` that a page names in prose is an option of some command or program."""
    known = set((ROOT / "tests" / "options.txt").read_text(encoding="utf-8").split())
    known |= {f"--no-{name[2:]}" for name in known}
    suffixes = (".py", ".sh", ".toml", ".json", "", ".def")
    programs = ("slurm", "containers", "Makefile", "noxfile.py", "plugins", "aam/cli", "examples")
    roots = [ROOT / name for name in programs]
    files = [each for path in roots for each in ([path] if path.is_file() else path.rglob("*"))]
    files = [path for path in files if path.is_file() and path.suffix in suffixes]
    sources = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in files)
    unknown = {}
    removed = (ROOT / "aam" / "removed.toml").read_text(encoding="utf-8")
    for page in PAGES:
        if page.name in MADE or page.parent.name in ("adr", "qiime2-crc"):
            continue
        texts = sources + (removed if page.name == "from-the-predecessor.md" else "")
        named = set(re.findall(r"`(--[a-z][a-z-]+)", page.read_text(encoding="utf-8")))
        missing = {name for name in named - known if name not in texts}
        unknown |= {page.name: sorted(missing)} if missing else {}
    assert not unknown, unknown


@pytest.mark.slow
def test_the_commands_for_a_new_study_run(tmp_path):
    printed = run_page(NEW_STUDY, tmp_path)
    assert "Traceback" not in printed
    assert (tmp_path / "check" / "report.html").is_file()


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("second")
    (folder / "printed.txt").write_text(run_page(SECOND, folder))
    return folder


def plain(text: str) -> str:
    """A text without numbers and line breaks, which differ between machines."""
    return " ".join(re.sub(r"\d[\d.e-]*", "#", text).split())


def check_shown(page: Path, printed: str) -> None:
    """Check that whatever stands between "..." is printed as it is shown, but for spaces and
    digits.
    """
    shown = re.findall(r"(?ms)^```text\n(.*?)^```$", page.read_text(encoding="utf-8"))
    pieces = [piece for block in shown for piece in block.split("...") if "sample-id" not in block]
    assert len(pieces) > 1
    for piece in pieces:
        assert plain(piece) in plain(printed), piece


@pytest.mark.slow
def test_the_tutorial_gives_what_it_shows(tmp_path):
    printed = run_page(TUTORIAL, tmp_path, THREADS_ONLY)
    check_shown(TUTORIAL, printed)
    metrics = json.loads((tmp_path / "tutorial/run/metrics.json").read_text())
    mae = metrics["targets"]["month"]["metrics"]["mae"]
    assert 2.4 < mae["value"] < 2.6
    assert mae["low"] < 2.45 < mae["high"]
    assert (tmp_path / "tutorial/run/report.html").stat().st_size < 3_000_000


@pytest.mark.slow
def test_the_second_tutorial_gives_what_it_shows(second):
    printed = (second / "printed.txt").read_text()
    check_shown(SECOND, printed)
    assert "158 held-out samples" in printed
    assert "158 samples explained" in printed
    metrics = json.loads((second / "second/run/metrics.json").read_text())
    auroc = metrics["targets"]["sex"]["metrics"]["auroc"]
    assert 0.65 < auroc["value"] < 0.69
    assert 0.5 < auroc["low"] < 0.57
    assert 0.75 < auroc["high"] < 0.82
    assert (second / "second/run/report.html").stat().st_size < 2_000_000


# --- reference ---------------------------------------------------------------------------------


def documented() -> str:
    return (DOCS / "reference" / "files.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_file_and_column_is_described(second):
    page = documented()
    missing = []
    for path in sorted((second / "second").rglob("*")):
        is_figure = path.suffix in (".svg", ".png") and path.with_suffix(".svg").is_file()
        is_top = path.parent.name == "second"
        left_out = "tensorboard" in path.parts or path.name == ".lock"
        if path.is_dir() or left_out or is_figure or is_top:
            continue
        missing += [] if f"`{path.name}`" in page else [path.name]
        if path.suffix == ".tsv":
            with path.open() as file:
                header = next(csv.reader(file, dialect="excel-tab"))
            for name in header:
                plain = re.sub(r"^sex$", "TARGET", re.sub(r"^sex=.*", "TARGET=CLASS", name))
                plain = re.sub(r"=(female|male)$", "", plain)
                plain = re.sub(r"^d\d+$", "dN", plain)
                plain = re.sub(r"\.(presence|forest|deep)$", ".MEMBER", plain)
                missing += [] if f"`{plain}`" in page else [f"{path.name}: {name}"]
    assert not missing, missing


def of_docs(name: str) -> ModuleType:
    """A module of docs, which is no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        return importlib.import_module(name)


def test_the_page_of_python_names_lists_the_public_names():
    page = of_docs("make_reference").python_page()
    names = re.findall(r"^## aam\.(\w+)$", page, re.MULTILINE)
    assert names == sorted(set(aam.__all__) - {"__version__"})


def test_make_has_every_target_and_variable_that_a_page_names():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = " ".join(re.findall(r"(?m)^([a-z][a-z -]+):", makefile)).split()
    variables = re.findall(r"\b[A-Z_]{2,}\b", makefile[: makefile.index("ENV :=")])
    named = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        named += re.findall(r"`make ([^`\n]+)`|(?m:^    make ([^#\n]+))", text)
    commands = [re.sub(r'"[^"]*"', "", first or second).split() for first, second in named]
    assert len(commands) > 40
    known = {words[0] for words in commands if words[0].islower() and "*" not in words[0]}
    assert known <= set(targets)
    given = (word for words in commands for word in words[1:] if "=" in word)
    assert {word.split("=")[0] for word in given} <= set(variables)


def test_the_reference_names_every_option():
    page = of_docs("make_reference").options_page()
    sections = dict(re.findall(r"(?ms)^## aam ([\w-]+)\n(.*?)(?=^## |\Z)", page))
    assert set(sections) == set(COMMANDS)
    for name, command in COMMANDS.items():
        for option in options_of(command.default()):
            assert f"| `{option.name}`" in sections[name], (name, option.name)


# --- the site ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("myst_parser", reason="the extra docs is not installed")
    pytest.importorskip("furo", reason="the extra docs is not installed")
    source = shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("build"))
    # Pages name files of the examples.
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=left_out)
    words = ["-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", source, tmp_path / "html"]
    run_program(sys.executable, *words, env=with_sources())
    home = (tmp_path / "html" / "index.html").read_text()
    outside = r'<(?:script|link|img)[^>]*(?:src|href)="https?:'
    assert not re.search(outside, home), "nothing is loaded from elsewhere"

"""The rules of the house: layers, sizes, no side effects on import, nothing unsafe, nothing
private.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "aam"
EXAMPLES = ROOT / "examples"
BENCHMARKS = ROOT / "benchmarks"
STEP = PACKAGE / "engine" / "step.py"

MOST_LINES_OF_A_FUNCTION = 60
MOST_PARAMETERS = 8
MOST_LINES_OF_TRAIN_STEP = 39

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def modules() -> dict[Path, ast.Module]:
    """Syntax tree of every module of the package, the examples and the benchmarks."""
    paths = sorted(
        path for folder in (PACKAGE, EXAMPLES, BENCHMARKS) for path in folder.rglob("*.py")
    )
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def nodes(*kinds: type[ast.AST], under: Path = ROOT) -> Iterator[tuple[str, ast.AST]]:
    """Nodes of the given kinds with the place to name in a message."""
    for path, tree in modules().items():
        if path.is_relative_to(under):
            for node in ast.walk(tree):
                if isinstance(node, kinds):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def lines(node: ast.AST) -> int:
    return node.end_lineno - node.lineno + 1


# --- layers ------------------------------------------------------------------------------------


def test_imports_keep_the_layers():
    source = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", source, "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_model_knows_neither_device_nor_rank():
    forbidden = re.compile(r"\b(torch\.distributed|torch\.cuda|autocast|print)\b")
    violations = [
        f"{place} {match.group()}"
        for place, node in nodes(ast.Call, ast.Import, ast.ImportFrom, under=PACKAGE / "model")
        if (
            match := forbidden.search(
                ast.unparse(node.func if isinstance(node, ast.Call) else node)
            )
        )
    ]
    assert not violations, violations


# --- sizes -------------------------------------------------------------------------------------


def test_functions_stay_short():
    long = {f"{place} {node.name}": lines(node) for place, node in nodes(*Function)}
    long = {name: size for name, size in long.items() if size > MOST_LINES_OF_A_FUNCTION}
    assert not long, long


def parameters(function: ast.FunctionDef) -> list[str]:
    spec = function.args
    every = [*spec.posonlyargs, *spec.args, spec.vararg, *spec.kwonlyargs, spec.kwarg]
    return [one.arg for one in every if one is not None and one.arg not in ("self", "cls")]


def test_functions_take_few_parameters():
    many = {f"{place} {node.name}": len(parameters(node)) for place, node in nodes(*Function)}
    many = {name: count for name, count in many.items() if count > MOST_PARAMETERS}
    assert not many, many


def train_step() -> ast.FunctionDef:
    assert STEP.exists(), "aam/engine/step.py is missing: it holds train_step"
    functions = [node for node in ast.walk(modules()[STEP]) if isinstance(node, Function)]
    named = [node for node in functions if node.name == "train_step"]
    assert len(named) == 1, (
        f"aam/engine/step.py defines train_step {len(named)} times, expected once"
    )
    return named[0]


# What the engine gives: an example has no loop over steps, no device, checkpoint or log of its own.
OF_THE_ENGINE = {
    "backward",
    "zero_grad",
    "save_file",
    "torch.save",
    "torch.load",
    "torch.device",
    "is_available",
    "getLogger",
    "init_process_group",
    "all_reduce",
    "isend",
    "irecv",
    "torch.autocast",
    "SummaryWriter",
}
# The CPU, where a network is loaded to be compared.
ALLOWED = {"torch.device('cpu')"}


def test_examples_leave_training_to_the_engine():
    offences = [
        f"{place} {ast.unparse(node.func)}"
        for place, node in nodes(ast.Call, under=EXAMPLES)
        if {ast.unparse(node.func), ast.unparse(node.func).rpartition(".")[2]} & OF_THE_ENGINE
        and ast.unparse(node) not in ALLOWED
    ]
    assert not offences, offences


def test_train_step_fits_one_screen():
    assert lines(train_step()) <= MOST_LINES_OF_TRAIN_STEP


def test_train_step_neither_waits_for_the_device_nor_does_io():
    called = [
        ast.unparse(node.func) for node in ast.walk(train_step()) if isinstance(node, ast.Call)
    ]
    waits = {"item", "tolist", "cpu", "numpy", "synchronize"}
    does_io = {
        "print",
        "open",
        "log",
        "info",
        "warning",
        "write",
        "write_text",
        "save",
        "add_scalar",
    }
    violations = [name for name in called if name.rpartition(".")[2] in waits | does_io]
    assert not violations, violations


# --- words -------------------------------------------------------------------------------------

# A private vocabulary that made good code hard to read; the words on the right are the field's.
PRIVATE_WORDS = {
    "lead": "is_main",
    "told": "broadcast",
    "most": "all_reduce_max",
    "exchanging": "no_sync",
    "whole": "full_tensor",
    "placed": "shard_like",
    "pause": "raise_if_requested",
    "offer": "maybe_save",
    "thaw": "unfreeze",
    "moments": "optimizer_state",
    "take_moments": "load_optimizer_state",
    "figures": "metrics",
    "rivals": "baselines",
    "draws": "rarefactions",
    "sides": "subsets",
    "divided": "make_splits",
    "twins_apart": "duplicates",
    "beat": "heartbeat",
    "settle": "say what happens",
}


def test_names_are_the_words_of_the_field():
    defined = [(place, node.name) for place, node in nodes(*Function, ast.ClassDef)]
    defined += [
        (place, node.target.id)
        for place, node in nodes(ast.AnnAssign)
        if isinstance(node.target, ast.Name)
    ]
    # "most" was a function of ranks; a parameter may be the most of something.
    defined += [
        (place, name)
        for place, node in nodes(*Function)
        for name in parameters(node)
        if name != "most"
    ]
    wrong = [
        f"{place} {name}: {word}"
        for place, name in defined
        if (word := PRIVATE_WORDS.get(name.strip("_").lower()))
    ]
    assert not wrong, wrong


def test_every_module_says_what_lives_in_it():
    silent = [
        str(path.relative_to(ROOT))
        for path, tree in modules().items()
        if not ast.get_docstring(tree)
    ]
    assert not silent, silent


# --- import without side effects ---------------------------------------------------------------


def test_modules_only_define_things():
    """No module calls a function for its effect while it is imported."""
    violations = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in modules().items()
        for node in tree.body
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
    ]
    assert not violations, violations


IMPORT_ALL = """
import importlib, json, logging, os, pathlib, random, signal, sys, warnings

def state():
    return {
        "environment": dict(os.environ),
        "files": sorted(str(path) for path in pathlib.Path(".").rglob("*")),
        "logging": [logging.root.level, len(logging.root.handlers)],
        "numpy": repr(numpy.random.get_state(legacy=False)) + repr(numpy.geterr()),
        "path": list(sys.path),
        "process group": torch.distributed.is_initialized(),
        "cuda": torch.cuda.is_initialized(),
        "random": hash(random.getstate()),
        "signals": {str(name): str(signal.getsignal(name)) for name in signal.valid_signals()},
        "torch": [str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.initial_seed(),
                  torch.get_num_threads(), torch.get_float32_matmul_precision()],
        "warnings": [str(each) for each in warnings.filters],
    }

import numpy, torch, torch.distributed
for name in %(others)s:
    importlib.import_module(name)
before = state()
for name in %(ours)s:
    importlib.import_module(name)
after = state()
sys.stderr.flush()
print(json.dumps({key: [before[key], after[key]] for key in before if before[key] != after[key]}))
"""


def dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def third_party() -> list[str]:
    """Modules of other projects that `aam` imports when it is imported itself."""
    named = set()
    for tree in modules().values():
        for node in tree.body:
            if isinstance(node, ast.Import):
                named.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                named.add(node.module)
    return sorted(
        name
        for name in named
        if name.split(".")[0] not in {"aam", "benchmarks", "examples", *sys.stdlib_module_names}
    )


def test_importing_has_no_side_effect(plain_python: Callable[[str], str]):
    source = IMPORT_ALL % {"others": third_party(), "ours": [dotted(path) for path in modules()]}
    printed = plain_python(source)
    assert printed.count("\n") == 1, f"importing printed:\n{printed}"
    assert json.loads(printed) == {}


# --- safety ------------------------------------------------------------------------------------


def test_nothing_is_unpickled():
    unsafe = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    violations = []
    for place, node in nodes(ast.Import, ast.ImportFrom, ast.Call):
        if isinstance(node, ast.Import):
            violations += [place for alias in node.names if alias.name.split(".")[0] in unsafe]
        elif isinstance(node, ast.ImportFrom):
            violations += [place] if (node.module or "").split(".")[0] in unsafe else []
        else:
            violations += [place] if ast.unparse(node.func) in ("torch.load", "torch.save") else []
            violations += [
                place for word in node.keywords if ast.unparse(word) == "allow_pickle=True"
            ]
    assert not violations, violations


def test_no_error_is_swallowed():
    violations = []
    for place, node in nodes(ast.ExceptHandler):
        caught = ast.unparse(node.type) if node.type else ""
        silent = all(isinstance(step, (ast.Pass, ast.Continue)) for step in node.body)
        if not caught or (silent and caught in ("Exception", "BaseException")):
            violations.append(place)
    assert not violations, violations


# --- what is committed -------------------------------------------------------------------------


def committed() -> list[Path]:
    """Files under version control, or all but hidden ones where there is no git."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listing = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
        paths = [ROOT / name for name in listing.split("\0") if name]
    else:
        skipped = (".git", ".venv", ".nox")
        paths = [
            path for path in ROOT.rglob("*") if not set(skipped) & set(path.relative_to(ROOT).parts)
        ]
    return [path for path in paths if path.is_file()]


def test_nothing_private_is_committed():
    """Neither package registries nor the folders of whoever wrote a file: both tie it to one
    machine.
    """
    hosts = [
        "pypi" + ".org",
        "pythonhosted" + ".org",
        "registry.npmjs" + ".org",
        "deb.debian" + ".org",
    ]
    hosts += ["security.debian" + ".org", "conda.anaconda" + ".org", "archive.ubuntu" + ".com"]
    folders = [
        "/work" + "/main",
        "/work" + "/shared",
        "/work" + "/.",
        "/tmp" + "/dev/",
        "/root" + "/.",
    ]
    forbidden = re.compile("|".join(map(re.escape, [*hosts, *folders])).encode())
    violations = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in committed()
        if (match := forbidden.search(path.read_bytes()))
    ]
    assert not violations, violations


def test_committed_files_are_small():
    """Real data and models stay outside the repository."""
    big = [str(path.relative_to(ROOT)) for path in committed() if path.stat().st_size > 1_000_000]
    assert not big, big

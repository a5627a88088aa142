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

import pytest

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
        path
        for folder in (PACKAGE, EXAMPLES, BENCHMARKS)
        for path in folder.rglob("*.py")
        if "tests" not in path.parts
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


def test_the_model_knows_neither_device_nor_rank():
    forbidden = re.compile(r"\b(torch\.distributed|torch\.cuda|autocast|print)\b")
    kinds = (ast.Call, ast.Import, ast.ImportFrom)
    violations = []
    for place, node in nodes(*kinds, under=PACKAGE / "model"):
        text = ast.unparse(node.func if isinstance(node, ast.Call) else node)
        violations += [f"{place} {word}" for word in forbidden.findall(text)]
    assert not violations, violations


# --- sizes -------------------------------------------------------------------------------------


def parameters(function: ast.FunctionDef) -> list[str]:
    spec = function.args
    every = [*spec.posonlyargs, *spec.args, spec.vararg, *spec.kwonlyargs, spec.kwarg]
    return [each.arg for each in every if each is not None and each.arg not in ("self", "cls")]


def test_functions_are_short_and_take_few_parameters():
    wrong = [
        f"{place} {node.name}: {lines(node)} lines, {len(parameters(node))} parameters"
        for place, node in nodes(*Function)
        if lines(node) > MOST_LINES_OF_A_FUNCTION or len(parameters(node)) > MOST_PARAMETERS
    ]
    assert not wrong, wrong


def train_step() -> ast.FunctionDef:
    functions = (node for node in ast.walk(modules()[STEP]) if isinstance(node, Function))
    (step,) = (node for node in functions if node.name == "train_step")
    return step


# What the engine gives: an example has no loop over steps, no device, checkpoint or log of its own;
# only HTFT's two stages send each other tensors.
OF_THE_ENGINE = """backward zero_grad save_file torch.save torch.load torch.device is_available
    getLogger init_process_group all_reduce torch.autocast SummaryWriter"""
# The CPU, where a network is loaded to be compared.
ALLOWED = {"torch.device('cpu')"}


def test_examples_leave_training_to_the_engine():
    offences = []
    for place, node in nodes(ast.Call, under=EXAMPLES):
        name = ast.unparse(node.func)
        named = {name, name.rpartition(".")[2]} & set(OF_THE_ENGINE.split())
        offences += [f"{place} {name}"] if named and ast.unparse(node) not in ALLOWED else []
    assert not offences, offences


def test_train_step_fits_one_screen_neither_waits_for_the_device_nor_does_io():
    assert lines(train_step()) <= MOST_LINES_OF_TRAIN_STEP
    calls = (node for node in ast.walk(train_step()) if isinstance(node, ast.Call))
    called = {ast.unparse(node.func).rpartition(".")[2] for node in calls}
    waits = {"item", "tolist", "cpu", "numpy", "synchronize"}
    does_io = {"print", "open", "log", "info", "warning", "write", "write_text", "save"}
    assert not called & (waits | does_io | {"add_scalar"})


# --- words -------------------------------------------------------------------------------------

# A private vocabulary that made good code hard to read.
PRIVATE_WORDS = """lead told most exchanging whole placed pause offer thaw moments take_moments
    figures rivals draws sides divided twins_apart beat settle one some each alone elsewhere given
    of_target mended how taken asked found usual"""


def test_names_are_the_words_of_the_field():
    defined = [(place, node.name) for place, node in nodes(*Function, ast.ClassDef)]
    targets = ((place, node.target) for place, node in nodes(ast.AnnAssign))
    defined += [(place, target.id) for place, target in targets if isinstance(target, ast.Name)]
    # "most" was a function of ranks; a parameter may be the most of something.
    named = [(place, name) for place, node in nodes(*Function) for name in parameters(node)]
    defined += [(place, name) for place, name in named if name != "most"]
    private = PRIVATE_WORDS.split()
    wrong = [f"{place} {name}" for place, name in defined if name.strip("_").lower() in private]
    assert not wrong, wrong


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield names and values of the assignments at the top of a module, of tuples one by one."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(map(ast.unparse, target.elts), node.value.elts, strict=True)


def test_each_constant_and_each_type_has_one_meaning():
    meanings: dict[str, dict[str, str]] = {}
    for path, tree in modules().items():
        for name, value in assignments(tree) if path.is_relative_to(PACKAGE) else ():
            text = ast.unparse(value)
            if name[0].isupper() and "TypeVar(" not in text:
                meanings.setdefault(name, {})[text] = path.name
    several = {name: texts for name, texts in meanings.items() if len(set(texts.values())) > 1}
    assert not several, several


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
    own = {"aam", "benchmarks", "examples", *sys.stdlib_module_names}
    return sorted(name for name in named if name.split(".")[0] not in own)


@pytest.mark.slow
def test_importing_has_no_side_effect(plain_python: Callable[[str], str]):
    source = IMPORT_ALL % {"others": third_party(), "ours": [dotted(path) for path in modules()]}
    printed = plain_python(source)
    assert printed.count("\n") == 1, f"importing printed:\n{printed}"
    assert json.loads(printed) == {}


# --- safety ------------------------------------------------------------------------------------


def test_nothing_is_unpickled():
    unsafe = "pickle cPickle _pickle dill cloudpickle joblib shelve marshal torch.load torch.save"
    unsafe += " all_gather_object broadcast_object_list"
    violations = []
    for place, node in nodes(ast.Import, ast.ImportFrom, ast.Call):
        if isinstance(node, ast.Import):
            used = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            used = {(node.module or "").split(".")[0]}
        else:
            name = ast.unparse(node.func)
            used = {name, name.rpartition(".")[2]}
            pickles = any(ast.unparse(word) == "allow_pickle=True" for word in node.keywords)
            violations += [place] * pickles
        violations += [place] if used & set(unsafe.split()) else []
    assert not violations, violations


# --- what is committed -------------------------------------------------------------------------


def committed() -> list[Path]:
    """Files under version control; none where there is no git."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        return []
    listing = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def test_nothing_private_is_committed():
    """Neither package registries nor the folders of whoever wrote a file: both tie it to one
    machine.
    """
    hosts = "pypi|org pythonhosted|org registry.npmjs|org deb.debian|org security.debian|org"
    hosts += " conda.anaconda|org archive.ubuntu|com"
    private = [host.replace("|", ".") for host in hosts.split()]
    private += [f"/{root}/{name}" for root, name in (("work", "main"), ("work", "shared"))]
    private += [f"/{root}/{name}" for root, name in (("work", "."), ("tmp", "dev/"), ("root", "."))]
    forbidden = re.compile("|".join(map(re.escape, private)).encode())
    found = {path: forbidden.search(path.read_bytes()) for path in committed()}
    violations = {str(path): match.group() for path, match in found.items() if match}
    assert not violations, violations


def test_committed_files_are_small():
    """Real data and models stay outside the repository."""
    big = [str(path.relative_to(ROOT)) for path in committed() if path.stat().st_size > 1_000_000]
    assert not big, big

"""Feeds damaged files to every reader: each is read, or refused with a message that names it, in
time and memory.

``python tests/faults/fuzz.py FOLDER --inputs 20000`` damages small valid files of each kind in
random ways; with ``--study`` tables and trees of a real study are among them. A reader that raises
anything but `InputError`, takes over 5 s, or over 1 GiB of memory, is a failure, and the input is
kept in FOLDER. Exit status 1 on a failure.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import random
import resource
import signal
import sys
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import torch
from biom import Table
from scipy import sparse

from aam.config import ModelConfig, PretrainConfig
from aam.data.region import RegionProfile
from aam.data.splits import read_split
from aam.data.table import read_table
from aam.data.targets import Targets, TargetSpec
from aam.engine.checkpoint import State, load, save
from aam.errors import InputError
from aam.evaluate.predictions import read_predictions
from aam.files.atomic import write_manifest
from aam.io.matrices import read_distances
from aam.io.metadata import read_metadata
from aam.io.phylogeny import read_tree
from aam.io.sequences import read_fasta
from aam.io.tables import write_hdf5
from aam.model.aam import Aam, HeadConfig
from aam.options import read_config
from aam.predict.blend import Blend, PerTarget
from aam.predict.members import LinearClassifier, LinearRegressor, TreesClassifier, TreesRegressor
from aam.predict.saved_model import SavedModel, load_model, save_model
from tests.archives import write_artifact
from tests.predict.samples import samples_of, saved_model

SECONDS, MEMORY = 5, 1 << 30
# Inputs that one process reads before the next is started.
AT_ONCE = 250
TOKENS = b"nan|inf|-1|1e309|0.5|\x00|\xff\xfe|\xef\xbb\xbf|\r\n|\t|\"|'||#q2:types|../../x|{}|\xe9".split(
    b"|"
)
TOKENS += [b"99999999999999999999", b"4294967296", b"[" * 3000, b"(" * 3000]
Reader = Callable[[Path], object]


def _table(path: Path) -> object:
    return read_table(path)


def _model(path: Path) -> object:
    return load_model(path, torch.device("cpu"))


READERS: dict[str, Reader] = {
    "biom": _table,
    "table.tsv": _table,
    "table.qza": _table,
    "fasta": lambda p: read_fasta(p, ["f1"]),
    "metadata.tsv": read_metadata,
    "nwk": read_tree,
    "tree.qza": read_tree,
    "h5": read_distances,
    "distances.tsv": read_distances,
    "distances.qza": read_distances,
    "split.tsv": read_split,
    "predictions.tsv": read_predictions,
    "toml": lambda p: read_config(p, PretrainConfig()),
    "run.json": lambda p: read_config(p, PretrainConfig()),
    "checkpoint": load,
    "model": _model,
    "members": _model,
}


def _model_of_members() -> SavedModel:
    """A model of a number and of classes: a linear model and trees of each, without a network."""
    samples, age = samples_of(n=30, features=12)
    old = (age > 0).astype(np.int64)
    usual: dict[str, Any] = {"depth": 100, "passes": 2}
    linear = LinearRegressor(**usual).fit(samples, age), LinearClassifier(**usual).fit(samples, old)
    numbers = TreesRegressor(n_estimators=4, **usual).fit(samples, age)
    classes = TreesClassifier(n_estimators=4, **usual).fit(samples, old)
    blend = Blend({"presence": PerTarget(linear), "forest": PerTarget((numbers, classes))})
    old_spec = TargetSpec("old", "class", ("no", "yes"))
    specs = (TargetSpec("age", "numeric", bounds=(-3.0, 3.0)), old_spec)
    profile = RegionProfile.fit(samples.names)
    return saved_model(targets=Targets(specs), profile=profile, blend=blend, depth=100)


def _seeds(folder: Path) -> dict[str, list[Path]]:
    """Valid files of each kind; folders for models and checkpoints."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    counts = sparse.csr_matrix(rng.poisson(2, (7, 9)))
    features = ["".join(rng.choice(list("ACGT"), 40)) for _ in range(9)]
    samples = [f"s{row}" for row in range(7)]
    write_hdf5(folder / "a.biom", counts, samples, features)
    table = Table(counts.T, features, samples)
    (folder / "a.table.tsv").write_text(f"{table.to_tsv()}\n")
    biom = {"feature-table.biom": (folder / "a.biom").read_bytes()}
    write_artifact(folder / "a.table.qza", "FeatureTable[Frequency]", "BIOMV210DirFmt", biom)
    records = [f">f{i} x\n{f[:9]}\n{f[9:]}\n" for i, f in enumerate(features)]
    (folder / "a.fasta").write_text("".join(records))
    metadata = "sample-id\tage\tsite\n#q2:types\tnumeric\tcategorical\n"
    metadata += "".join(f's{i}\t{i}.5\t"a ""b"""\n' for i in range(7))
    (folder / "a.metadata.tsv").write_text(metadata)
    tips = ",".join(f"{f}:0.{i}" for i, f in enumerate(features[:5], 1))
    tree = f"(({tips})0.9:1e-3,('x y':2,z:1)[c]:0.5)r;"
    (folder / "a.nwk").write_text(tree)
    newick = {"tree.nwk": tree.encode()}
    write_artifact(folder / "a.tree.qza", "Phylogeny[Rooted]", "NewickDirectoryFormat", newick)
    distances = rng.random((7, 7)).astype(np.float32)
    distances = np.triu(distances, 1) + np.triu(distances, 1).T
    with h5py.File(folder / "a.h5", "w") as file:
        file["order"], file["matrix"] = np.array([s.encode() for s in samples]), distances
    matrix = pd.DataFrame(distances, samples, samples).to_csv(sep="\t")
    (folder / "a.distances.tsv").write_text(matrix)
    members = {"distance-matrix.tsv": matrix.encode()}
    write_artifact(folder / "a.distances.qza", "DistanceMatrix", "D", members)
    split = "".join(f"s{i}\t{'train' if i else 'test'}\t{i % 2}\n" for i in range(7))
    (folder / "a.split.tsv").write_text("sample-id\tside\tfold\n" + split)
    predictions = "sample-id\tph\tph.rarefaction-sd\tsite\tsite=a\tsite=b\tfold\tsubset\tnote\n"
    predictions += "".join(f"s{i}\t7\t0.1\ta\t0.9\t0.1\t\tnew\t\n" for i in range(7))
    (folder / "a.predictions.tsv").write_text(predictions)
    (folder / "a.toml").write_text('[data]\ntable = "x"\n[train]\nlr = 1e-3\nepochs = 3\n')
    config = {"data": {"table": "x"}, "train": {"lr": 0.001, "warmup_steps": 3}}
    (folder / "a.run.json").write_text(json.dumps({"config": config}))
    save(folder / "a.checkpoint", State({"model.a": torch.ones(3)}, {"progress": {"step": 3}}))
    sizes = ModelConfig(embedding_dim=8, attention_heads=2, attention_layers=1)
    heads = HeadConfig(n_targets=1)
    targets = Targets((TargetSpec("age", "numeric", bounds=(0.0, 1.0)),))
    profile = RegionProfile.fit(features)
    saved = saved_model(Aam(sizes, 40, heads), heads, targets, model=sizes, profile=profile)
    save_model(folder / "a.model", saved)
    save_model(folder / "a.members", _model_of_members())
    return {kind: [folder / f"a.{kind}"] for kind in READERS}


def _damaged(blob: bytes, draw: random.Random) -> bytes:
    """`blob` with one to four random changes."""
    data = bytearray(blob)
    for _ in range(draw.randint(1, 4)):
        at, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
        match draw.randrange(6):
            case 0 if data:
                data[min(at, len(data) - 1)] ^= 1 << draw.randrange(8)
            case 1:
                del data[at : min(end, at + 64)]
            case 2:
                data[at:at] = draw.choice(TOKENS)
            case 3:
                data[at:at] = data[at : min(end, at + 4096)]
            case 4:
                del data[end:]
            case _:
                data[at : at + draw.randint(1, 8)] = draw.randbytes(draw.randint(1, 8))
    return bytes(data)


def _damaged_hdf5(blob: bytes, draw: random.Random) -> bytes:
    """One dataset or attribute replaced by something else, the file itself being whole."""
    buffer = io.BytesIO(blob)
    with h5py.File(buffer, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, node: names.extend([name] * isinstance(node, h5py.Dataset)))
        name = draw.choice(names)
        old = file[name][()]
        choices = [np.zeros((3, 3)), np.array([b"x"] * 4), np.zeros(0)]
        if old.dtype.kind != "O":
            choices += [old[:-1] if old.ndim else old, old[::-1], np.full(old.shape, 2**40)]
            choices += [np.array([np.nan, -1.0, 1e30]), np.float64(3)]
        del file[name]
        match draw.randrange(4):
            case 0:
                file.create_dataset(name, shape=(10**12,), dtype="f8", chunks=(1024,))
            case 1:
                file.create_group(name)
            case _:
                file[name] = draw.choice(choices)
        if draw.random() < 0.2:
            file.attrs["shape"] = draw.choice([(1, 1), (-1, 2**40), "x"])
    return buffer.getvalue()


def _damaged_zip(blob: bytes, draw: random.Random) -> bytes:
    """One file inside damaged, renamed or blown up, the archive itself being whole."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(blob)) as old:
        contents = {name: old.read(name) for name in old.namelist()}
    name = draw.choice(sorted(contents))
    match draw.randrange(4):
        case 0:
            names = ["../up", "/etc/x", f"{name}/../y", "a\\b", "/", name.upper()]
            contents[draw.choice(names)] = contents.pop(name)
        case 1:
            contents[name] = b"\0" * (100 << 20)
        case _:
            contents[name] = _damaged(contents[name], draw)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in contents.items():
            new.writestr(name, content)
    return buffer.getvalue()


def damage(kind: str, seed: Path, path: Path, draw: random.Random) -> None:
    """Write a damaged copy of `seed` to `path`."""
    if seed.is_dir():
        path.mkdir()
        for file in seed.iterdir():
            (path / file.name).write_bytes(file.read_bytes())
        target = draw.choice(sorted(path.iterdir()))
        target.write_bytes(_damaged(target.read_bytes(), draw))
        if draw.random() < 0.7 and target.name != "manifest.json":
            # As if whoever damaged it had written the manifest too.
            (path / "manifest.json").unlink()
            write_manifest(path)
        return
    blob = seed.read_bytes()
    if kind in ("biom", "h5") and draw.random() < 0.5:
        blob = _damaged_hdf5(blob, draw)
    elif kind.endswith("qza") and draw.random() < 0.7:
        blob = _damaged_zip(blob, draw)
    else:
        blob = _damaged(blob, draw)
    path.write_bytes(blob)


def attempt(kind: str, path: Path) -> str:
    """What is wrong with how the reader of `kind` took `path`; empty when nothing is."""

    def late(*_: object) -> None:
        raise TimeoutError(f"over {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        READERS[kind](path)
    except InputError as error:
        name = path.name.split(".")[0]
        named = (name in each or "targets of the model" in each for each in error.problems)
        if not all(named):
            return f"the message does not name the file: {error}"
    except BaseException:  # noqa: BLE001 (whatever it is, it is what we look for)
        return traceback.format_exc()
    finally:
        signal.alarm(0)
    return ""


def _batch(seeds: dict[str, list[Path]], folder: Path, first: int, number: int) -> int:
    """Failures among `number` inputs, found in a process of its own with bounded memory."""
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status < 0:
            print(f"killed by signal {-status} in the inputs from {first} on", flush=True)
        return abs(status)
    logging.getLogger("aam").setLevel(logging.ERROR)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    failures = number
    try:
        failures = sum(_one(seeds, folder, at) for at in range(first, first + number))
    finally:
        os._exit(min(failures, 100))


def _one(seeds: dict[str, list[Path]], folder: Path, at: int) -> bool:
    """Whether input number `at` is a failure; one that is not is removed."""
    draw = random.Random(at)
    kind = list(READERS)[at % len(READERS)]
    path = folder / f"input-{at}.{kind}"
    damage(kind, draw.choice(seeds[kind]), path, draw)
    wrong = attempt(kind, path)
    if wrong:
        print(f"{path}: {wrong}", flush=True)
        return True
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        file.unlink(missing_ok=True)
    if path.is_dir():
        path.rmdir()
    return False


def of_today() -> int:
    """Number of the first input of this day, so that each night feeds inputs that no night before
    did.
    """
    return time.time_ns() // (86_400 * 10**9) * 1_000_000


def run(folder: Path, inputs: int, seed: int, study: Path | None) -> int:
    """Failures among `inputs` damaged files."""
    seeds = _seeds(folder / "seeds")
    if study is not None:
        for kind in ("biom", "metadata.tsv", "nwk"):
            name = {"biom": "table.biom", "nwk": "tree.nwk"}.get(kind, kind)
            seeds[kind].append(study / name)
    for kind, (valid, *_) in seeds.items():
        assert not attempt(kind, valid), attempt(kind, valid)
        READERS[kind](valid)
    starts = range(0, inputs, AT_ONCE)
    counts = (_batch(seeds, folder, seed + at, min(AT_ONCE, inputs - at)) for at in starts)
    failures = sum(counts)
    print(f"inputs from --seed {seed} on")
    print(f"{inputs} inputs, {failures} failures")
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("folder", type=Path, help="an empty folder")
    add("--inputs", type=int, default=20_000, help="damaged files altogether")
    add("--seed", type=int, default=of_today(), help="number of the first input; unset: by date")
    add("--study", type=Path, help="folder with table.biom, metadata.tsv and tree.nwk")
    chosen = parser.parse_args()
    sys.exit(1 if run(chosen.folder, chosen.inputs, chosen.seed, chosen.study) else 0)

"""A run as an RO-Crate: one zip that says what was computed from what, by which software, to those
without aam.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from aam.engine.run import METRICS, Record, read_record
from aam.errors import InputError, import_extra
from aam.files.atomic import MANIFEST, atomic_file, file_digest, verify_manifest
from aam.files.output_folder import RUN, check_unlocked
from aam.options import spelled

# Title and authors as CITATION.cff has them, which is not installed.
TITLE, AUTHORS = "aam: Attention All Microbes", "The aam developers"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
TERMS = "https://w3id.org/ro/terms/workflow-run#"
FORMATS = {
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".tsv": "text/tab-separated-values",
    ".html": "text/html",
}
# The last file of a run comes first; the others are taken where they are there, of each fold too.
FINISHED = "metrics.json"
FILES = (FINISHED, RUN, METRICS, "split.tsv", "validation.tsv", "predictions.tsv", "report.html")


def _read(folder: Path) -> Record:
    """Return the run.json of a finished, undamaged run; `InputError` where it is none."""
    record = read_record(folder / RUN)
    if record.get("command") not in ("train", "pretrain"):
        raise InputError(
            f"{folder}: written by aam {record.get('command')}; --crate takes a run of aam train "
            "or pretrain"
        )
    check_unlocked(folder)
    if not (folder / FINISHED).is_file():
        raise InputError(
            f"{folder}: the run is not finished (no {FINISHED}); go on with it by --resume-from "
            "auto"
        )
    verify_manifest(folder / "model")
    try:
        started = datetime.strptime(record["started"], "%Y-%m-%dT%H:%M:%S%z").isoformat()
        inputs = {
            name: {key: str(entry[key]) for key in ("path", "sha256")}
            for name, entry in record["inputs"].items()
        }
        return {
            **record,
            "started": started,
            "inputs": inputs,
            "versions": {"aam": "unknown", **record["versions"]},
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder / RUN}: damaged, expected what aam writes there ({error!r})"
        ) from None


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a run that its crate holds."""
    for name in FILES:
        yield from sorted([*folder.glob(name), *folder.glob(f"fold-*/{name}")])
    yield from sorted(path for path in (folder / "model").rglob("*") if path.is_file())


def write_crate(folder: Path, output: Path) -> None:
    """Write the RO-Crate of a run: results with checksums, inputs by name and checksum, software
    and what it did.

    Raises
    ------
    InputError
        rocrate is not installed, or the folder holds no finished run of `aam train` or `aam
        pretrain`.
    """
    library = import_extra("rocrate.rocrate", "crate", "aam report --crate")
    record = _read(folder)
    crate = _described(library.ROCrate(version="1.1"), folder.resolve(), record)
    with atomic_file(output) as temporary:
        crate.write_zip(temporary)


def _format(path: Path) -> str:
    return FORMATS.get(path.suffix, "application/octet-stream")


def _described(crate: Any, folder: Path, record: Record) -> Any:
    """Return a crate with all that is to be said of a run."""

    def add(identifier: str, kind: str, name: str, **properties: Any) -> Any:
        return crate.add_jsonld({"@id": identifier, "@type": kind, "name": name, **properties})

    crate.metadata.extra_terms.update(
        {name: TERMS + name for name in ("ContainerImage", "containerImage")}
        | {"sha256": "https://schema.org/sha256"}
    )
    command, versions = record["command"], record["versions"]
    crate.name = f"aam {command}: {folder.name}"
    crate.description = f"A run of aam {command}: its model, what it predicts, and the report."
    crate.license = (
        "Not stated: who publishes this crate names the licence of the data and of the results."
    )
    aam = add("#aam", "SoftwareApplication", TITLE, softwareVersion=versions["aam"])
    aam["author"] = add("#authors", "Organization", AUTHORS)
    aam["identifier"] = record.get("commit")
    aam["softwareRequirements"] = [
        add(f"#{name}", "SoftwareApplication", name, softwareVersion=version)
        for name, version in versions.items()
        if name != "aam"
    ]
    inputs = [
        add(f"#input-{name.replace(' ', '-')}", "File", entry["path"], sha256=entry["sha256"])
        for name, entry in record["inputs"].items()
    ]
    for name, entity in zip(record["inputs"], inputs, strict=True):
        entity["encodingFormat"] = _format(Path(entity["name"]))
        entity["description"] = (
            f"{spelled(name)}, not in this crate; of a model, the checksum is that of its "
            f"{MANIFEST}"
        )
    ended = datetime.fromtimestamp((folder / FINISHED).stat().st_mtime, timezone.utc)
    action = crate.add_action(
        aam,
        "#run",
        inputs,
        [_add_file(crate, path, path.relative_to(folder).as_posix()) for path in _files(folder)],
        {
            "name": f"aam {command}",
            "description": f"Repeated by: aam {command} --config {RUN} --output-dir AGAIN",
            "startTime": record["started"],
            "endTime": ended.isoformat(timespec="seconds"),
            "actionStatus": "http://schema.org/CompletedActionStatus",
        },
    )
    if image := record.get("image"):
        action["containerImage"] = add(
            "#image", "ContainerImage", "image", sha256=str(image).removeprefix("sha256:")
        )
    root = crate.root_dataset
    root["conformsTo"] = add(PROFILE, "CreativeWork", "Process Run Crate", version="0.5")
    root["citation"], root["mentions"] = aam, action
    return crate


def _add_file(crate: Any, path: Path, name: str) -> Any:
    """Add a file to the crate with its size, checksum and kind."""
    about = {"name": name, "contentSize": str(path.stat().st_size), "sha256": file_digest(path)}
    return crate.add_file(path, name, properties={**about, "encodingFormat": _format(path)})

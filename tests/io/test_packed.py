from __future__ import annotations

import io
import re
import struct
import zipfile
from pathlib import Path

import pytest

from aam.io import packed as artifact
from aam.io.packed import read_artifact
from tests.archives import write_artifact
from tests.refusals import refusal

ROOT = "45c12936-4b60-484d-bbe1-98ff96bad145"
TYPE = "Phylogeny[Rooted]"
METADATA = f"uuid: {ROOT}\ntype: {TYPE}\nformat: NewickDirectoryFormat\n"
GOOD = {
    f"{ROOT}/VERSION": "QIIME 2\narchive: 5\nframework: 2023.5.0\n",
    f"{ROOT}/metadata.yaml": METADATA,
    f"{ROOT}/data/tree.nwk": "(a,b);",
    f"{ROOT}/provenance/action/action.yaml": "x",
}


WITHOUT_METADATA = {name: text for name, text in GOOD.items() if "metadata" not in name}


def packed(files=GOOD, method=zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def save(path: Path, files=GOOD) -> Path:
    path.write_bytes(packed(files))
    return path


def read(path: Path, *types: str, name: str = "tree.nwk") -> bytes:
    return read_artifact(path, dict.fromkeys(types or (TYPE,), name))


def refused(path: Path, *accepted: str, **options: str) -> str:
    message = refusal(read, path, *accepted, **options)
    assert str(path) in message
    return message


def test_reads_the_file_of_the_type(tmp_path):
    path = save(tmp_path / "tree.qza", {f"{ROOT}/data/": "", **GOOD, f"{ROOT}/data/sub/x": b"\xff"})
    assert read(path, "FeatureData[Sequence]", TYPE) == b"(a,b);"
    assert read(path, name="sub/x") == b"\xff"
    assert "no file 'data/y' in Phylogeny[Rooted], found 'VERSION'" in refused(path, name="y")


@pytest.mark.parametrize(
    "metadata",
    [
        f"type: '{TYPE}'\nuuid: {ROOT}\nformat: null\n",
        f"type: {TYPE} % Properties(['x'])\nuuid: \"{ROOT}\"\nformat: F\n\n",
    ],
)
def test_metadata_as_yaml_writes_it(tmp_path, metadata):
    assert read(save(tmp_path / "t.qza", GOOD | {f"{ROOT}/metadata.yaml": metadata})) == b"(a,b);"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (f"uuid: {ROOT}\n", "no type in metadata.yaml; not a QIIME 2 archive"),
        (METADATA.replace("type", " type"), "no type in metadata.yaml"),
        ("type: " + "y" * 60_000, "holds yyyy"),
        (b"uuid: \xff\n", "not a readable QIIME 2 archive"),
    ],
)
def test_bad_metadata(tmp_path, metadata, expected):
    message = refused(save(tmp_path / "t.qza", GOOD | {f"{ROOT}/metadata.yaml": metadata}))
    assert expected in message
    assert len(message) < 600 + len(str(tmp_path)), "long metadata is shown in part"


def test_another_type_is_named_with_the_reason(tmp_path):
    path = save(tmp_path / "t.qza")
    assert refused(path, "A[B]", "C[D]").endswith("expected A[B] or C[D]")
    reason = "counts are needed"
    assert refusal(read_artifact, path, {"Phylogeny[B]": "x"}, reason).endswith(f"; {reason}")
    write_artifact(path, "FeatureData[Sequence]", "X", {"x": b""})
    message = refusal(read_artifact, path, {"FeatureTable[B]": "x"}, reason)
    assert message.endswith(f"holds FeatureData[Sequence], expected FeatureTable[B]; {reason}")


@pytest.mark.parametrize(
    ("blob", "expected"),
    [
        (packed(GOOD | {"/etc/passwd": "x"}), f"holds '', '{ROOT}', expected one folder"),
        (packed(GOOD | {"../evil": "x"}), f"holds '..', '{ROOT}', expected one folder"),
        (packed(GOOD | {"__MACOSX/._x": "x"}), "'__MACOSX', expected one folder, named by a UUID;"),
        (packed({"[Content_Types].xml": "x", "xl/workbook.xml": "x"}), ": is a workbook of Excel"),
        (packed({"mimetype": "x", "content.xml": "x"}), "save it as tab-separated text"),
        (packed({"readme/x": "1"}), "holds 'readme', expected one folder, named by a UUID; take"),
        (packed({}), "holds nothing, expected one folder"),
        (packed(WITHOUT_METADATA), "no type in metadata.yaml"),
        (packed(method=zipfile.ZIP_BZIP2), "encrypted or not deflated"),
        (b"(a,b);", "not a readable QIIME 2 archive"),
        (packed()[:-30], "not a readable QIIME 2 archive"),
    ],
)
def test_files_that_are_no_archive(tmp_path, blob, expected):
    path = tmp_path / "t.qza"
    path.write_bytes(blob)
    assert expected in refused(path)


def test_bombs_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    path = save(tmp_path / "t.qza", GOOD | {f"{ROOT}/data/zeros": b"0" * (80 << 20)})
    assert path.stat().st_size < 100_000
    assert "data/zeros unpacks to 83886" in refused(path, name="zeros")
    assert read(path) == b"(a,b);", "other files are not unpacked"
    small = save(tmp_path / "u.qza", GOOD | {f"{ROOT}/data/zeros": b"0" * 2000})
    assert len(read(small, name="zeros")) == 2000
    monkeypatch.setattr(artifact, "MAX_FILE", 1999)
    assert "unpacks to 2000 bytes, expected at most 1999" in refused(small, name="zeros")


@pytest.mark.parametrize("claimed", [10, 5000])
def test_a_directory_that_lies_about_sizes(tmp_path, claimed):
    blob = bytearray(packed(GOOD | {f"{ROOT}/data/tree.nwk": b"0" * 2000}))
    place = blob.rindex(b"PK\x01\x02", 0, blob.rindex(f"{ROOT}/data/tree.nwk".encode()))
    assert struct.unpack_from("<I", blob, place + 24) == (2000,)
    struct.pack_into("<I", blob, place + 24, claimed)
    path = tmp_path / "t.qza"
    path.write_bytes(blob)
    assert re.search("archive says|not a readable", refused(path))

from __future__ import annotations

import hashlib
import io
import re
import stat
import struct
import uuid
import zipfile
from pathlib import Path

import pytest

from aam.errors import InputError
from aam.io import packed as artifact
from aam.io.packed import read_artifact, write_artifact
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


def refused(path: Path, *accepted: str) -> str:
    message = refusal(read, path, *accepted)
    assert str(path) in message
    return message


def test_reads_the_file_of_the_type(tmp_path):
    path = save(tmp_path / "tree.qza", {f"{ROOT}/data/": "", **GOOD, f"{ROOT}/data/sub/x": b"\xff"})
    assert read(path, "FeatureData[Sequence]", TYPE) == b"(a,b);"
    assert read(path, name="sub/x") == b"\xff"
    with pytest.raises(
        InputError, match=r"no file 'data/y' in Phylogeny\[Rooted\], found .*'data/tree.nwk'"
    ):
        read(path, name="y")


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
        (METADATA + "more: x\n", "'more': 'x'"),
        (METADATA + f"type: {TYPE}\n", "expected uuid"),
        (METADATA.replace("format: ", "format:"), "'format:Newick"),
        (METADATA.replace("format", " format"), "' format'"),
        (f"uuid: {ROOT}\n", f"expected uuid {ROOT}, type and format"),
        (METADATA.replace(ROOT, str(uuid.UUID(int=1))), f"expected uuid {ROOT}"),
        (b"uuid: \xff\n", "not a readable QIIME 2 archive"),
        ("uuid: " + "y" * 60_000, "expected uuid"),
        ("x" * 70_000, "no usable metadata.yaml"),
    ],
)
def test_bad_metadata(tmp_path, metadata, expected):
    message = refused(save(tmp_path / "t.qza", GOOD | {f"{ROOT}/metadata.yaml": metadata}))
    assert expected in message
    assert len(message) < 600 + len(str(tmp_path)), "long metadata is shown in part"


def test_another_type_is_named_with_the_reason(tmp_path):
    path = save(tmp_path / "t.qza")
    assert refused(path, "A[B]", "C[D]").endswith(
        f"holds {TYPE}, expected A[B] or C[D]; pass it to --tree"
    )
    kind = TYPE.partition("[")[0]
    with pytest.raises(InputError, match=r"; counts are needed$"):
        read_artifact(path, {f"{kind}[B]": "x"}, "counts are needed")
    write_artifact(tmp_path / "s.qza", "FeatureData[Sequence]", "X", {"x": b""})
    with pytest.raises(InputError, match=r"expected FeatureTable\[B\]; pass it to --sequences$"):
        read_artifact(tmp_path / "s.qza", {"FeatureTable[B]": "x"}, "counts are needed")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (GOOD | {"/etc/passwd": "x"}, "2 folders at the top"),
        (GOOD | {"../evil": "x"}, "2 folders at the top"),
        (GOOD | {f"{uuid.UUID(int=3)}/data/x": "x"}, "2 folders at the top"),
        (GOOD | {"stray": "x"}, "2 folders at the top"),
        ({"readme/x": "1"}, "'readme' of the archive is not a UUID"),
        ({}, "top folder '' of the archive is not a UUID"),
        ({k: v for k, v in GOOD.items() if "VERSION" not in k}, "no usable VERSION"),
        ({k: v for k, v in GOOD.items() if "yaml" not in k}, "no usable metadata.yaml"),
        (GOOD | {f"{ROOT}/VERSION": "QIIME 3\n"}, "does not begin with 'QIIME 2'"),
    ],
)
def test_zip_files_that_are_no_archive(tmp_path, files, expected):
    assert expected in refused(save(tmp_path / "t.qza", files))


def test_files_that_are_no_zip(tmp_path):
    path = tmp_path / "t.qza"
    path.write_bytes(b"(a,b);")
    assert "not a readable QIIME 2 archive" in refused(path)
    path.write_bytes(packed()[:-30])
    assert "not a readable QIIME 2 archive" in refused(path)
    assert "not a readable QIIME 2 archive" in refused(tmp_path)


@pytest.mark.parametrize(
    "name", [f"{ROOT}/../evil", f"{ROOT}/data/../../x", f"{ROOT}/data/..", f"{ROOT}/a\\..\\b"]
)
def test_names_that_lead_out_are_refused(tmp_path, name):
    message = refused(save(tmp_path / "t.qza", GOOD | {name: "x"}))
    assert f"{name!r} in the archive are links or lead out of its folder" in message


def test_links_are_refused(tmp_path):
    path = save(tmp_path / "t.qza")
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo(f"{ROOT}/data/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    assert f"'{ROOT}/data/link' in the archive are links" in refused(path)


def test_two_files_of_one_name(tmp_path):
    path = tmp_path / "t.qza"
    name = f"{ROOT}/data/tree.nwx"
    path.write_bytes(packed(GOOD | {name: "(c);"}).replace(b"tree.nwx", b"tree.nwk"))
    assert "two files of the archive have the same name" in refused(path)


def test_other_methods_are_refused(tmp_path):
    path = tmp_path / "t.qza"
    path.write_bytes(packed(method=zipfile.ZIP_BZIP2))
    assert "encrypted or not deflated" in refused(path)


def test_bombs_are_refused_from_the_directory(tmp_path, monkeypatch):
    path = save(tmp_path / "t.qza", GOOD | {f"{ROOT}/data/zeros": b"0" * (80 << 20)})
    assert path.stat().st_size < 100_000
    assert "unpacks to 83886" in refused(path)
    small = save(tmp_path / "u.qza", GOOD | {f"{ROOT}/data/zeros": b"0" * 2000})
    assert len(read(small, name="zeros")) == 2000
    with monkeypatch.context() as limits:
        limits.setattr(artifact, "MAX_FILE", 1999)
        assert "its largest file to 2000" in refused(small)
    with monkeypatch.context() as limits:
        limits.setattr(artifact, "MAX_TOTAL", 2100)
        assert "expected at most 2100" in refused(small)
    with monkeypatch.context() as limits:
        limits.setattr(artifact, "MAX_FILES", 4)
        assert "5 files in the archive, expected at most 4" in refused(small)


@pytest.mark.parametrize("claimed", [10, 5000])
def test_a_directory_that_lies_about_sizes(tmp_path, claimed):
    blob = bytearray(packed(GOOD | {f"{ROOT}/data/tree.nwk": b"0" * 2000}))
    place = blob.rindex(b"PK\x01\x02", 0, blob.rindex(f"{ROOT}/data/tree.nwk".encode()))
    assert struct.unpack_from("<I", blob, place + 24) == (2000,)
    struct.pack_into("<I", blob, place + 24, claimed)
    path = tmp_path / "t.qza"
    path.write_bytes(blob)
    assert re.search("archive says|not a readable", refused(path))


def test_what_is_written_is_a_valid_archive(tmp_path):
    path = tmp_path / "new" / "t.qza"
    files = {"feature-table.biom": bytes(range(256)) * 10, "sub/x.txt": b""}
    write_artifact(path, "FeatureTable[Frequency]", "BIOMV210DirFmt", files)
    for name, content in files.items():
        assert read(path, "FeatureTable[Frequency]", name=name) == content
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        root = archive.namelist()[0].split("/")[0]
        content = {name.removeprefix(f"{root}/"): archive.read(name) for name in archive.namelist()}
    assert uuid.UUID(root).version == 4
    # The pattern by which QIIME 2 parses VERSION.
    pattern = (
        rb"QIIME 2\narchive: [0-9]{1,2}\nframework: 20[0-9]{2}\.[1-9][0-2]?\.[0-9](\+[.\w]+)?\n"
    )
    assert re.fullmatch(pattern, content["VERSION"])
    sums = dict(
        reversed(line.split("  ")) for line in content.pop("checksums.md5").decode().splitlines()
    )
    assert sums == {
        name: hashlib.md5(blob, usedforsecurity=False).hexdigest() for name, blob in content.items()
    }
    assert content["provenance/metadata.yaml"] == content["metadata.yaml"]
    assert content["provenance/VERSION"] == content["VERSION"]
    assert {"provenance/citations.bib", "provenance/action/action.yaml"} < set(content)
    assert content["metadata.yaml"].decode().endswith("\nformat: BIOMV210DirFmt\n")
    assert [each.name for each in path.parent.iterdir()] == ["t.qza"]

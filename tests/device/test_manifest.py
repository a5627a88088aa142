"""Manifests: what is recorded, and what is refused."""

from __future__ import annotations

import json

import pytest

from aam.device.files import file_digest
from aam.device.manifest import MANIFEST, verify_manifest, write_manifest
from aam.errors import InputError


def test_a_manifest_names_files_of_its_folder_only(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("1")
    (tmp_path / "secret").write_text("2")
    write_manifest(tmp_path / "in")
    verify_manifest(tmp_path / "in")
    manifest = json.loads((tmp_path / "in" / "manifest.json").read_text())
    digest = {"bytes": 1, "sha256": file_digest(tmp_path / "secret")}
    for name in ("../secret", str(tmp_path / "secret"), "x" * 5000, "a\0b"):
        manifest["files"] = {name: digest}
        (tmp_path / "in" / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(InputError, match="missing or damaged"):
            verify_manifest(tmp_path / "in")


def test_every_file_that_differs_is_named(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    write_manifest(tmp_path)
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").unlink()
    with pytest.raises(InputError) as caught:
        verify_manifest(tmp_path)
    assert caught.value.problems == tuple(
        f"{tmp_path}/{name}: missing or damaged (its checksum differs)" for name in ("a", "b")
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [("[]", "damaged"), ('{"format": 1}', "damaged"), ('{"format": 9, "files": {}}', "format 9")],
)
def test_a_manifest_of_another_form_is_refused(tmp_path, content, message):
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(InputError, match=message):
        verify_manifest(tmp_path)

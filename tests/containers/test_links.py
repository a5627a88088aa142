"""What links.py makes below a root folder: AMD's names of devices, and the file of all
certificates.
"""

from __future__ import annotations

import runpy
from pathlib import Path

LINKS = runpy.run_path(str(Path(__file__).parents[2] / "containers" / "inside" / "links.py"))
DEVICE_NAMES = "opt/venv/lib/python3.12/site-packages/torch/share/libdrm/amdgpu.ids"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_path_of_libdrm_leads_to_the_file_of_the_wheel(tmp_path):
    LINKS["main"](tmp_path)
    assert list(tmp_path.iterdir()) == [], "without the wheel nothing is linked"
    write(tmp_path / DEVICE_NAMES, "names")
    LINKS["main"](tmp_path)
    link = tmp_path / "opt/amdgpu/share/libdrm/amdgpu.ids"
    assert str(link.readlink()) == f"/{DEVICE_NAMES}", "inside the image the root folder is /"
    LINKS["main"](tmp_path)
    link.unlink()
    write(link, "the vendor's base has its own")
    LINKS["main"](tmp_path)
    assert not link.is_symlink()


def test_certificates_are_joined_where_no_install_script_ran(tmp_path):
    write(tmp_path / "usr/share/ca-certificates/mozilla/B.crt", "second\n")
    write(tmp_path / "usr/share/ca-certificates/mozilla/A.crt", "first")
    LINKS["main"](tmp_path)
    bundle = tmp_path / "etc/ssl/certs/ca-certificates.crt"
    assert bundle.read_text() == "first\nsecond\n"
    bundle.write_text("the install script's")
    LINKS["main"](tmp_path)
    assert bundle.read_text() == "the install script's"


def test_files_of_a_checkout_that_is_closed_to_others_are_readable_in_an_image(tmp_path):
    closed = write(tmp_path / "opt/aam/fabric/build.py", "")
    closed.chmod(0o600)
    closed.parent.chmod(0o700)
    (closed.parent / "link").symlink_to("nowhere")
    LINKS["main"](tmp_path)
    assert (closed.stat().st_mode & 0o777, closed.parent.stat().st_mode & 0o777) == (0o644, 0o755)

"""Puts the programs of containers/ and slurm/ into the wheel: aam/bundled, where `aam slurm` and
`aam image` look.
"""

import os
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# What MANIFEST.in takes of these; with them an installed aam can build its own wheel for an image.
BUNDLED = (
    "containers",
    "slurm",
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
)


def commit() -> str:
    """Return the commit of the sources: what the caller says, or else git; empty without both."""
    if not Path(".git").exists():
        return os.environ.get("AAM_COMMIT", "")
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


class BuildWithPrograms(build_py):
    """Copy the programs too, except for an editable install, which finds them in the checkout."""

    def run(self) -> None:
        """Build the package, then add the programs."""
        super().run()
        if self.editable_mode:
            return
        self.run_command("egg_info")
        for name in self.get_finalized_command("egg_info").filelist.files:
            if Path(name).parts[0] in BUNDLED and "tests" not in Path(name).parts:
                target = Path(self.build_lib, "aam", "bundled", name)
                self.mkpath(str(target.parent))
                self.copy_file(name, str(target))
        if commit():
            Path(self.build_lib, "aam", "bundled", "commit").write_text(f"{commit()}\n")


setup(cmdclass={"build_py": BuildWithPrograms})

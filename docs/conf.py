"""The documentation site: `make docs` builds it without a network, and every warning is an
error.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from make_reference import write_reference  # noqa: E402

import aam  # noqa: E402

project = "aam"
author = "The aam developers"
project_copyright = "the aam developers"
release = version = aam.__version__
# The second writes .nojekyll, without which some hosts of pages leave _static out.
extensions = ["myst_parser", "sphinx.ext.githubpages"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["build", "benchmarks"]
html_theme = "furo"
html_title = f"aam {release}"
html_extra_path: list[str] = []
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
nitpicky = True

write_reference(HERE / "reference")


def _name_files_outside(app: Any, docname: str, source: list[str]) -> None:
    """Name files of the repository that are no page of the site, where a page links to them."""
    folder = (HERE / docname).parent

    def named(link: re.Match[str]) -> str:
        path = (folder / link[2]).resolve()
        outside = path.exists() and not path.is_relative_to(HERE)
        return f"{link[1]} (`{path.relative_to(HERE.parent)}`)" if outside else link[0]

    source[0] = re.sub(r"\[([^]]+)\]\((\.\./[^)#\s]+)\)", named, source[0])


def setup(app: Any) -> None:
    """Register what pages go through before they are read."""
    app.connect("source-read", _name_files_outside)

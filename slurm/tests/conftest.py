"""Makes the modules of slurm/jobs and containers/lib importable."""

from __future__ import annotations

import sys
from pathlib import Path

# Last on the path: inside an image, aam must be the image's own and not the copy next to the tests.
sys.path.append(str(Path(__file__).parents[2]))

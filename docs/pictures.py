"""Take the picture of the README: the first screen of the demo's report, in Chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORT, PICTURE = ROOT / "demo/run/report.html", ROOT / "docs/pictures/report-regression.png"
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--window-size=1280,900",
    "--virtual-time-budget=5000",
    "--blink-settings=preferredColorScheme=1",  # light
    f"--screenshot={PICTURE}",
)


def main() -> None:
    """Open the report of `make demo` and save its first screen."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        sys.exit("no Chromium on PATH: install chromium or google-chrome")
    subprocess.run([browser, *OPTIONS, REPORT.as_uri()], check=True, capture_output=True)
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()

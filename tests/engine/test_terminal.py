"""What a person sees: log lines above one bar, on terminals of every width, and plain lines
elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PATH = "/scratch/" + "a-folder-of-a-long-name/" * 6 + "report.html"
LOSSES = "train epoch {}/6: train_loss 0.{}234, val_loss 0.5, {} s left"
MESSAGES = [LOSSES.format(epoch, epoch, 9 - epoch) for epoch in range(6)]
MESSAGES += [f"all tables: {PATH}"]

SOURCE = f"""
import logging, sys, time
from aam.engine.logger import ProgressBar, TerminalHandler
log = logging.getLogger("aam")
log.addHandler(TerminalHandler())
log.setLevel(logging.INFO)
with ProgressBar("train fold 3, epoch 1/6", 700) as bar:
    for step, message in enumerate({MESSAGES!r}):
        bar.update(100 * step, description=f"train fold 3, epoch {{step}}/6", rate="31 samples/s")
        log.info("%s", message)
        time.sleep(0.05)
"""


def environment(**variables: str) -> dict[str, str]:
    colours = ("NO_COLOR", "COLUMNS", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if name not in colours}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **variables}


def on_a_terminal(width: int, **variables: str) -> str:
    """What a process writes to standard error where that is a terminal of `width` columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    words = [sys.executable, "-c", SOURCE]
    process, written = subprocess.Popen(words, stderr=theirs, env=environment(**variables)), b""
    os.close(theirs)
    # Linux reports the end of a terminal as an error.
    with contextlib.suppress(OSError):
        while block := os.read(ours, 1 << 16):
            written += block
    os.close(ours)
    assert process.wait() == 0, written.decode()
    return written.decode()


def screen(written: str) -> list[str]:
    """The lines that a terminal shows in the end: what rich erases and moves over is gone."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            lines[row] = ""
        elif not part.startswith("\x1b"):
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines if line.strip()]


@pytest.mark.parametrize("width", [40, 200])
def test_lines_stand_whole_above_one_bar_that_goes(width):
    written = on_a_terminal(width)
    assert "━" in written, "there was a bar"
    shown = screen(written)
    assert not any("━" in line for line in shown), "and none is left"
    assert all(len(line) <= width for line in shown if PATH not in line)
    # Each message once, no word broken.
    assert " ".join(" ".join(shown).split()) == " ".join(MESSAGES)


def test_no_color_and_dumb_terminals_have_words_only():
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        written = on_a_terminal(80, **variables)
        assert "\x1b" not in written
        assert " ".join(written.split()) == " ".join(MESSAGES)
        assert all(len(line) <= 80 for line in written.splitlines() if PATH not in line)


def test_a_pipe_has_one_plain_line_for_each_message():
    words, plain = [sys.executable, "-c", SOURCE], environment()
    done = subprocess.run(words, capture_output=True, text=True, env=plain, check=True)
    assert done.stderr.splitlines() == MESSAGES
    assert done.stdout == ""

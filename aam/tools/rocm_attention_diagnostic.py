"""The old name of `aam doctor --attention`: ``python -m aam.tools.rocm_attention_diagnostic``.

What is judged stands in `device/attention.py`.
"""

from __future__ import annotations

import sys

from aam.cli import main

if __name__ == "__main__":
    sys.exit(main(["doctor", "--attention", *sys.argv[1:]]))

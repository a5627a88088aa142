"""``python -m aam`` is the command ``aam``."""

import sys

from aam.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m aam_16s``: search for the nearest samples of a collection, and model cards."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from aam.errors import BAD_INPUT, FINISHED, InputError
from aam.files.atomic import atomic_file, check_writable
from aam_16s.encoders import MODELS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m aam_16s", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    search = commands.add_parser("search", help="nearest samples of a collection")
    search.add_argument("table", type=Path, help="feature table whose samples are searched for")
    search.add_argument("--among", type=Path, required=True, help="feature table to search in")
    search.add_argument("--output", type=Path, required=True, help="table to write (.tsv)")
    search.add_argument(
        "--model", default="16s-v4", help="encoder or model folder (default: 16s-v4)"
    )
    search.add_argument(
        "--distance", choices=("cosine", "unifrac", "weighted-normalized"), default="cosine"
    )
    search.add_argument("--nearest", type=int, default=10, help="samples to find (default: 10)")
    search.add_argument("--rarefy-depth", type=int, help="reads per sample (default: 1,000)")
    search.add_argument("--sequences", type=Path, help="sequences, if feature ids are not DNA")
    search.add_argument("--trim", action="store_true", help="cut ASVs that are too long")
    search.add_argument("--trim-primers", action="store_true", help="cut 16S primers from ASVs")
    search.add_argument("--overwrite", action="store_true", help="replace the output")
    card = commands.add_parser("card", help="print the model card of an encoder")
    card.add_argument("name", choices=sorted(path.name for path in MODELS.iterdir()))
    return parser


def _search(words: argparse.Namespace) -> None:
    # The import takes seconds, and `card` and `--help` need none of it.
    from aam_16s.search import search

    check_writable(words.output, words.overwrite)
    for path in (words.table, words.among):
        if not path.exists():
            raise InputError(f"{path}: no such file")
    among = None if words.among.samefile(words.table) else words.among
    names = ("rarefy_depth", "sequences", "trim", "trim_primers")
    options = {name: getattr(words, name) for name in names if getattr(words, name)}
    found = search(
        words.table, among, words.model, distance=words.distance, nearest=words.nearest, **options
    )
    with atomic_file(words.output) as temporary:
        found.to_csv(temporary, sep="\t", index=False, lineterminator="\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    words = _parser().parse_args(arguments)
    try:
        if words.command == "card":
            print((MODELS / words.name / "card.md").read_text(encoding="utf-8").rstrip())
        else:
            _search(words)
    except InputError as error:
        print(*(f"  - {problem}" for problem in error.problems), sep="\n", file=sys.stderr)
        return BAD_INPUT
    return FINISHED


if __name__ == "__main__":
    sys.exit(main())

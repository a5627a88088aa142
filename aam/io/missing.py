"""Cells that hold no value."""

from __future__ import annotations

import re

# Terms of INSDC, alone or with a colon and the reason, and what R, pandas and Excel write.
MISSING = re.compile(
    r"(missing|not applicable|not collected|not provided|restricted access)(:.*)?|"
    r"|na|n/a|nan|nat|null|<na>|#n/a",
    re.DOTALL,
)
# Punctuation alone, and errors of spreadsheets.
NO_CLASS = re.compile(
    r"[-\u2010-\u2015\u2212.,:;?!*_/\\~'\"()\[\]<>|=#&%^`\u2026\s]+|"
    r"#(nv|[a-z]+[!?]|div/0!|getting_data)|err:\d+"
)


def is_missing(value: str) -> bool:
    """Return whether a cell says that there is no value: empty, or a term of `MISSING` in any
    case.
    """
    return MISSING.fullmatch(value.lower()) is not None


def is_no_class(value: str) -> bool:
    """Return whether a cell is punctuation or an error of a spreadsheet, which is neither a class
    nor said to be missing.
    """
    return NO_CLASS.fullmatch(value.lower()) is not None

"""Verdicts on this machine that later processes take over: a cache on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aam.errors import InputError
from aam.runtime.files import read_json, write_text
from aam.runtime.platform import Facts

log = logging.getLogger("aam")


def cache_folder() -> Path:
    """Where verdicts of this machine are kept: ``AAM_CACHE``, or ``aam`` below ``XDG_CACHE_HOME`` or ~/.cache."""
    own = os.environ.get("AAM_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aam"


def cached_verdict(
    name: str, of: Facts, make: Callable[[], Facts], valid: Callable[[Any], bool], anew: bool = False
) -> Facts:
    """What `make` found out of this machine about `of`, now or (unless `anew`) in an earlier process.

    Kept in a file of its own, which appears whole; one that is damaged, or not `valid`, is made again.
    """
    digest = hashlib.blake2b(json.dumps(of).encode(), digest_size=8).hexdigest()
    path = cache_folder() / f"{name}-{digest}.json"
    with contextlib.suppress(InputError):
        content = None if anew else read_json(path)
        if isinstance(content, dict) and content.get("of") == of and valid(content.get("found")):
            return content["found"]  # type: ignore[no-any-return]
    found = make()
    try:
        write_text(path, json.dumps({"of": of, "found": found}) + "\n")
    except OSError as error:
        log.info("%s: not kept (%s); it is found out again next time", path, error.strerror)
    return found

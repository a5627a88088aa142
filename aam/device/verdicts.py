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
from aam.files.atomic import read_json, write_text

Facts = dict[str, Any]

log = logging.getLogger("aam")


def cache_folder() -> Path:
    """Return the cache of verdicts: ``AAM_CACHE``, or ``aam`` below ``XDG_CACHE_HOME`` or ~/.cache."""
    folder = os.environ.get("AAM_CACHE")
    return Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aam"


def cached_verdict(
    name: str, question: Facts, measure: Callable[[], Facts], is_valid: Callable[[Any], bool], refresh: bool = False
) -> Facts:
    """Return what `measure` returned for `question`, now or (unless `refresh`) in an earlier process.

    Each verdict is kept in a file, written atomically; where that is damaged or not valid, `measure` runs again.

    Parameters
    ----------
    name : str
        Beginning of the file's name.
    question : dict
        All that the verdict depends on, as plain data.
    measure : callable
    is_valid : callable
        Whether a value read from a file is a verdict.
    refresh : bool
    """
    digest = hashlib.blake2b(json.dumps(question).encode(), digest_size=8).hexdigest()
    path = cache_folder() / f"{name}-{digest}.json"
    with contextlib.suppress(InputError):
        content = None if refresh else read_json(path)
        if isinstance(content, dict) and content.get("question") == question and is_valid(content.get("verdict")):
            return content["verdict"]  # type: ignore[no-any-return]
    verdict = measure()
    try:
        write_text(path, json.dumps({"question": question, "verdict": verdict}) + "\n")
    except OSError as error:
        log.info("%s: not kept (%s); it is measured again next time", path, error.strerror)
    return verdict

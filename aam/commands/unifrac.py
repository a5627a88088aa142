"""`aam unifrac`: the UniFrac matrix or Faith PD of a table."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aam.api.unifrac import samples_on_tree
from aam.config_commands import UnifracConfig
from aam.data.table import read_table
from aam.diversity.tables import parse_stripe, read_stripes, stripe_tiles, write_stripe
from aam.engine.terminal import ProgressBar
from aam.errors import InputError
from aam.files.atomic import file_digest
from aam.files.output_folder import check_output_file
from aam.io.matrices import Tile, ids_beside, write_distances, write_faith_pd
from aam.io.newick import read_tree
from aam.options import files_read, given, to_dict

log = logging.getLogger("aam")


def _identity(config: UnifracConfig) -> dict[str, Any]:
    """Return what parts of one matrix have in common: checksums of table and tree, and the options of the distance."""
    names = ("unifrac_metric", "alpha", "root_length", "variance_adjusted", "missing_tips", "midpoint_root")
    options = to_dict(config)
    identity = {name: options[name] for name in (*names, "rarefy_depth", "seed", "empty_samples")}
    return identity | {"table": file_digest(given(config.table)), "tree": file_digest(given(config.tree))}


def _check_merged(config: UnifracConfig, identity: Mapping[str, Any]) -> None:
    """Raise `InputError` for each option that is given and is not that of the parts of a matrix."""
    options, usual = to_dict(config), to_dict(UnifracConfig())
    problems = [
        f"--{name.replace('_', '-')} is {options[name]}, and the parts were computed with {value}; leave it out, or "
        "compute them again"
        for name, value in identity.items()
        if options[name] not in (usual[name], value)
    ]
    if problems:
        raise InputError(*problems)


def _shown(tiles: Iterable[Tile], samples: int) -> Iterator[Tile]:
    """Yield the tiles, and show how many pairs of samples are done."""
    done = 0
    with ProgressBar("UniFrac", samples**2, "pairs of samples") as bar:
        for rows, columns, tile in tiles:
            yield rows, columns, tile
            done += tile.size if rows == columns else 2 * tile.size
            bar.update(done)


def write_unifrac(config: UnifracConfig) -> None:
    """Compute the distances or diversities that `config` asks for and write them in one step.

    Raises
    ------
    InputError
        Problems of options, table or tree; features without a tip unless ``--missing-tips drop``.
    """
    output = given(config.output)
    stripe = parse_stripe(config.stripe) if config.stripe else None
    if output.suffix == ".npy":
        check_output_file(ids_beside(output), config.overwrite, files_read(config).values())
    if config.merge:
        stripes = read_stripes(config.merge)
        _check_merged(config, stripes[0].identity)
        ids = stripes[0].sample_ids
        write_distances(output, ids, _shown(stripe_tiles(stripes), len(ids)))
        log.info("%s: %d samples from %d parts", output, len(ids), len(stripes))
        return
    table = read_table(given(config.table), need_sequences=False, transpose=config.transpose)
    samples = samples_on_tree(config, table, read_tree(given(config.tree), config.midpoint_root))
    ids = samples.table.sample_ids
    if config.unifrac_metric == "faith_pd":
        write_faith_pd(output, ids, samples.faith_pd())
        log.info("%s: faith_pd of %d samples", output, len(ids))
        return
    tiles = samples.tiles(stripe or (1, 1))
    if stripe is not None:
        write_stripe(output, stripe, _identity(config), ids, tiles)
        log.info("%s: part %d of %d of %s of %d samples", output, *stripe, config.unifrac_metric, len(ids))
        return
    write_distances(output, ids, _shown(tiles, len(ids)))
    log.info("%s: %s of %d samples", output, config.unifrac_metric, len(ids))

"""`aam prepare`: a table in the form that large studies are read in."""

from __future__ import annotations

import logging

from aam.config_commands import PrepareConfig
from aam.contradictions import check_command
from aam.data.prepare import write_prepared
from aam.data.prepared import SUFFIX, is_prepared
from aam.device.files import atomic_file
from aam.device.output_folder import check_output_file
from aam.errors import InputError
from aam.options import files_read, given

log = logging.getLogger("aam")


def prepare(config: PrepareConfig) -> None:
    """Write the prepared form of a table.

    Raises
    ------
    InputError
        Bad options, a bad table, sequences or tree, an output that exists.
    """
    check_command(config)
    table = given(config.table)
    if is_prepared(table):
        raise InputError(f"--table: {table} is prepared already; pass the table that it was made from")
    if config.midpoint_root and config.tree is None:
        raise InputError("--midpoint-root: roots a tree, and no --tree is given")
    output = config.output or table.with_name(table.name + SUFFIX)
    check_output_file(output, config.overwrite, files_read(config).values())
    with atomic_file(output) as temporary:
        samples, asvs = write_prepared(temporary, table, config.sequences, config.tree, config.midpoint_root)
    log.info("%s: %d samples, %d ASVs, %.2f GB", output, samples, asvs, output.stat().st_size / 1e9)

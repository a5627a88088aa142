"""`aam simulate`: write a synthetic study and say what is in it."""

from __future__ import annotations

import math

from aam.config_commands import SimulateConfig
from aam.data.simulate import simulate
from aam.evaluate.intervals import number

MEASURES = ("median_richness", "seen_in_one_sample", "ph_r2", "biome_accuracy", "biome_chance")


def simulate_study(config: SimulateConfig) -> None:
    """Write a synthetic study and print its size, what can be predicted in it at best, and its
    files.

    A measure that the study is too small for is a dash.

    Raises
    ------
    InputError
        As `aam.data.simulate.simulate`.
    """
    truth = simulate(config)
    measured = {name: number(math.nan if truth[name] is None else truth[name]) for name in MEASURES}
    print(
        f"{config.output_dir}: {truth['samples']} samples of {truth['subjects']} subjects, "
        f"{truth['asvs']} ASVs",
        f"  reads of a sample: median {truth['median_depth']:.0f}",
        f"  ASVs of a sample at {truth['oracle_depth']} reads: median "
        f"{measured['median_richness']}",
        f"  share of the ASVs that occur in one sample only: {measured['seen_in_one_sample']}",
        "  best to expect on unseen subjects, from linear models that know all traits:",
        f"    ph: R2 {measured['ph_r2']}",
        f"    biome: accuracy {measured['biome_accuracy']}, by chance {measured['biome_chance']}",
        "  the study: table.biom, metadata.tsv, tree.nwk",
        "  what is true in it: traits.tsv, truth.json",
        sep="\n",
    )

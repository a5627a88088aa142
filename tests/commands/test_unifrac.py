"""`aam unifrac`: samples without reads on the tree are named, and kept, written as NaN or left
out.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from aam.api.unifrac import write_unifrac
from aam.config_commands import UnifracConfig
from aam.data.table import make_table, write_biom
from aam.diversity import tables as unifrac_tiles
from aam.errors import InputError
from aam.io.matrices import read_distances
from tests.refusals import refusal

COUNTS = np.array([[4, 3, 0], [0, 0, 9], [1, 0, 0], [0, 0, 0], [0, 5, 0]], np.uint32)


@pytest.fixture
def config(tmp_path) -> UnifracConfig:
    """Feature x has no tip, so that samples b and d have no reads on the tree."""
    write_biom(make_table(csr_array(COUNTS), "abcde", ["f", "g", "x"]), tmp_path / "table.biom")
    (tmp_path / "tree.nwk").write_text("(f:1,g:2);")
    return UnifracConfig(
        table=tmp_path / "table.biom",
        tree=tmp_path / "tree.nwk",
        output=tmp_path / "d.npy",
        missing_tips="drop",
    )


def run(config: UnifracConfig, **options) -> Path:
    config = replace(config, **options)
    write_unifrac(config)
    return config.output


def test_empty_samples_are_named_and_keep_their_distances_unless_asked_otherwise(config, caplog):
    """Issue 15, point 15: 0 between two empty samples, without a word."""
    with caplog.at_level(logging.WARNING, "aam"):
        values = read_distances(run(config)).values
    assert (
        "2 of 5 samples have no reads on the tree: 'b', 'd'; their distances mean nothing"
        in caplog.text
    )
    assert values[1, 3] == 0


def test_empty_samples_are_nan_on_request(config):
    values = np.load(run(config, empty_samples="nan"))
    others = np.ix_([0, 2, 4], [0, 2, 4])
    assert np.isfinite(values[others]).all()
    assert np.isnan(values[1, [0, 2, 3, 4]]).all()
    assert np.isnan(values[[0, 1, 2, 4], 3]).all()


def test_empty_samples_are_left_out_on_request(config, tmp_path):
    kept = read_distances(run(config, empty_samples="drop"))
    assert kept.ids == ("a", "c", "e")
    write_biom(make_table(csr_array(COUNTS[[1]]), "b", ["f", "g", "x"]), tmp_path / "table.biom")
    assert "--empty-samples drop leaves no sample" in refusal(
        run, config, empty_samples="drop", overwrite=True
    )


@pytest.fixture
def study(tmp_path, monkeypatch) -> UnifracConfig:
    """Fifty samples in tiles of eight, so that parts hold several."""
    monkeypatch.setattr(unifrac_tiles, "TILE", 8)
    rng = np.random.default_rng(4)
    counts = (rng.integers(1, 30, (50, 40)) * (rng.random((50, 40)) < 0.3)).astype(np.uint32)
    names = [f"f{column:02}" for column in range(40)]
    write_biom(
        make_table(csr_array(counts), [f"s{row:02}" for row in range(50)], names),
        tmp_path / "table.biom",
    )
    (tmp_path / "tree.nwk").write_text(
        f"(({','.join(f'{name}:0.5' for name in names[:20])}):1,"
        f"({','.join(f'{name}:0.25' for name in names[20:])}):2);"
    )
    return UnifracConfig(
        table=tmp_path / "table.biom",
        tree=tmp_path / "tree.nwk",
        output=tmp_path / "d.h5",
        threads=1,
    )


@pytest.mark.parametrize("count", [1, 3])
def test_merged_parts_are_the_matrix_of_one_process(study, tmp_path, count):
    expected = read_distances(run(study, unifrac_metric="weighted"))
    parts = tuple(
        run(
            study, unifrac_metric="weighted", stripe=f"{i + 1}/{count}", output=tmp_path / f"{i}.h5"
        )
        for i in range(count)
    )
    merged = UnifracConfig(merge=parts[::-1], output=tmp_path / "merged.h5")
    merged_distances = read_distances(run(merged))
    assert merged_distances.ids == expected.ids
    np.testing.assert_array_equal(merged_distances.values, expected.values)


def test_parts_that_do_not_belong_together_are_refused(study, tmp_path):
    def part(name: str, **options) -> Path:
        return run(study, output=tmp_path / name, **options)

    first, other = (
        part("1.h5", stripe="1/3"),
        part("2.h5", stripe="2/3", unifrac_metric="generalized"),
    )
    merged = UnifracConfig(merge=(first, other, first), output=tmp_path / "merged.h5")
    text = refusal(run, merged)
    assert "2.h5 and" in text
    assert "differ in 'unifrac_metric'" in text
    assert "parts '3/3' are missing" in text
    assert "repeat parts that other files hold" in text
    assert not merged.output.exists()
    assert "not a part of a matrix" in refusal(
        run, UnifracConfig(merge=(run(study),), output=tmp_path / "merged.h5")
    )
    with pytest.raises(InputError) as error:
        run(replace(merged, merge=(study.table, first, study.tree)))
    assert [problem.partition(":")[0] for problem in error.value.problems] == [
        str(study.table),
        str(study.tree),
    ]
    assert "--stripe is '4/3', expected I/N" in refusal(part, "4.h5", stripe="4/3")


def test_a_merged_matrix_is_not_called_what_its_parts_are_not(study, tmp_path):
    """`--merge ... --unifrac-metric weighted` wrote the unweighted distances of the parts, without
    a word.
    """
    parts = tuple(run(study, stripe=f"{i}/2", output=tmp_path / f"{i}.h5") for i in (1, 2))
    merged = UnifracConfig(merge=parts, output=tmp_path / "m.h5")
    with pytest.raises(InputError) as error:
        run(merged, unifrac_metric="weighted", rarefy_depth=10)
    assert [problem.partition(" is ")[0] for problem in error.value.problems] == [
        "--rarefy-depth",
        "--unifrac-metric",
    ]
    assert not merged.output.exists()


def test_variance_adjusted_distances_are_others(study, tmp_path):
    usual = read_distances(run(study, unifrac_metric="weighted-normalized"))
    adjusted = read_distances(
        run(
            study,
            unifrac_metric="weighted-normalized",
            variance_adjusted=True,
            output=tmp_path / "v.h5",
        )
    )
    assert np.abs(usual.values - adjusted.values).max() > 0.01

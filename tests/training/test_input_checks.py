"""What would fail or mislead only after training is refused before it, in one message."""

from __future__ import annotations

import pytest

from aam.cli.main import main
from aam.io.metadata import read_metadata


@pytest.mark.parametrize("metric", ["auroc", "val_loss"])
def test_names_and_validation_subsets_that_cannot_be_used(simulate_study, tmp_path, capsys, metric):
    """Two columns of predictions of one name, and a validation subset of one class, whose AUROC is not defined."""
    study = simulate_study(samples=40, asvs=50, depth=900)
    ids = read_metadata(study / "metadata.tsv").ids
    lines = [f"{name}\t{'ab'[at % 2]}\t{at}" for at, name in enumerate(ids)]
    (tmp_path / "m.tsv").write_text("\n".join(["sample-id\tsite\tsite=a", *lines]) + "\n")
    subsets = [("validation" if at < 20 else "test") if at % 2 else "train" for at in range(40)]
    subsets[-1] = subsets[-3] = "train"
    rows = [f"{name}\t{subset}\t" for name, subset in zip(ids, subsets, strict=True)]
    (tmp_path / "split.tsv").write_text("\n".join(["sample-id\tside\tfold", *rows]) + "\n")
    words = f"train --table {study}/table.biom --metadata {tmp_path}/m.tsv --metadata-column site site=a "
    words += f"--split {tmp_path}/split.tsv --rarefy-depth 200 --threads 1 --members deep --best-metric {metric} "
    assert main([*words.split(), "--output-dir", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "two columns of predictions would be called 'site=a'" in message
    undefined = "--best-metric auroc: the validation subset holds one value of 'site' only"
    assert (undefined in message) == (metric == "auroc")
    assert not (tmp_path / "run").exists()

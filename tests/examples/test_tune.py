"""The search finds options, and goes on where it was stopped."""

from __future__ import annotations

import pytest

from aam.errors import BAD_INPUT, FINISHED
from examples.tune import __main__ as tune

pytest.importorskip("optuna")


@pytest.mark.slow
def test_a_search_goes_on_and_names_the_best_options(simulate_study, tmp_path, capsys, monkeypatch):
    study = simulate_study(samples=40, asvs=60)
    monkeypatch.setattr(tune, "SPACE", {"--members": ("presence", "forest")})
    words = f"--table {study}/table.biom --metadata {study}/metadata.tsv --metadata-column ph"
    words += f" --rarefy-depth 300 --threads 1 --output-dir {tmp_path}/tuned --trials"
    assert tune.main([*words.split(), "1"]) == FINISHED
    assert tune.main([*words.split(), "2"]) == FINISHED
    assert "best: --members " in capsys.readouterr().out
    runs = sorted(path.name for path in (tmp_path / "tuned").glob("trial-*"))
    assert runs == ["trial-0", "trial-1"]


def test_wrong_options_end_the_search(tmp_path, capsys):
    words = ["--table", str(tmp_path / "none.biom"), "--output-dir", str(tmp_path / "tuned")]
    assert tune.main(words) == BAD_INPUT
    assert "none.biom: no such file" in capsys.readouterr().err

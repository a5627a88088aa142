"""What is said before any work: help, typing errors, missing options and files, without torch and
its like.
"""

from __future__ import annotations

import json

import pytest

from aam.cli import main, parse
from aam.config import FineTuneConfig, PredictConfig

HEAVY = ["torch", "sklearn", "pandas", "scipy", "h5py", "skbio", "altair", "tensorboard"]
HEAVY += ["biom", "numpy"]

SAID = {
    "--help": (0, "evaluate    judge"),
    "trian": (2, "did you mean 'train'?"),
    "--versio": (2, "did you mean '--version'?"),
    "version": (2, "did you mean '--version'?"),
    "train --help": (0, "--metadata-column"),
    "train --embeding-dim 3": (2, "'--embeding-dim'; did you mean '--embedding-dim'?"),
    "pretrain": (2, "aam pretrain: 2 problems"),
    "train": (2, "aam train: 4 problems"),
    "unifrac": (2, "aam unifrac: 3 problems"),
    "evaluate": (2, "--metadata: not given"),
    "train --table no.biom --metadata-column a --output-dir o": (2, "no.biom: no such file"),
    "predict --model no --output p.tsv --metadata no.tsv": (2, "--metadata: no.tsv: no such file"),
}


def test_what_is_wrong_is_said_before_anything_large_is_imported(plain_python):
    printed = plain_python(f"""
import contextlib, io, json, sys
from aam.cli import main
said = {{}}
for words in {list(SAID)!r}:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            status = main(words.split())
        except SystemExit as stop:
            status = stop.code
    said[words] = status, printed.getvalue(), [name for name in {HEAVY!r} if name in sys.modules]
print(json.dumps(said))
""")
    said = json.loads(printed)
    for words, (status, expected) in SAID.items():
        assert (said[words][0], said[words][2]) == (status, []), said[words]
        assert expected in said[words][1], words


def test_a_command_imports_only_what_it_uses(plain_python):
    """Each import adds to the one before it."""
    absent = {
        "unifrac": ("sklearn", "scipy.optimize", "pandas", "altair", "torch", "biom", "skbio"),
        "predict": ("altair", "torch.distributed.fsdp", "jinja2"),
        "embed": ("altair", "torch.distributed.fsdp"),
    }
    printed = plain_python(f"""
import sys
from aam.cli import COMMANDS
for name, absent in {absent!r}.items():
    COMMANDS[name].load()
    print(name, [name for name in absent if name in sys.modules])
""")
    assert printed.splitlines() == [f"{name} []" for name in absent]


def test_predict_offers_only_what_it_takes(capsys, refused):
    with pytest.raises(SystemExit):
        parse("predict", PredictConfig(), ["--help"])
    text = capsys.readouterr().out
    assert "--output PATH" in text
    assert "--output-dir" not in text
    said = refused(main, ["predict", "--output-dir", "o"])
    assert "unknown option '--output-dir'; did you mean '--output'?" in said


def test_help_names_the_range_and_what_is_required(capsys):
    with pytest.raises(SystemExit):
        parse("train", FineTuneConfig(), ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "auto: the largest that fits. (1 or more; default 32)" in text
    assert "Sample metadata (QIIME 2 TSV). (required)" in text


def test_a_run_says_at_its_start_what_it_learns_where(study, tmp_path, capsys):
    words = f"pretrain --table {study}/table.biom --dry-run --output-dir {tmp_path}/run".split()
    for more, losses, is_warned in (
        ([], "masked nucleotides, masked counts", True),
        (["--tree", str(study / "tree.nwk")], "unifrac, masked nucleotides", False),
    ):
        assert main([*words, "--device", "cpu", *more]) == 0
        text = capsys.readouterr().err
        (line,) = [line for line in text.splitlines() if line.startswith("pretrain: CPU")]
        assert "80 ASVs, rarefied to" in line
        assert f"losses: {losses}" in line
        assert ("no UniFrac term is learned" in text) == is_warned


def test_a_frozen_encoder_learns_no_unifrac_and_covariates_are_warned_of_once(
    study, tmp_path, capsys
):
    """The start named UniFrac, which frozen weights cannot learn; each fold repeated the warnings
    of covariates.
    """
    lines = (study / "metadata.tsv").read_text().splitlines()
    cells = [f"{line}\t{'' if at == 5 else 'ab'[at % 2]}" for at, line in enumerate(lines)]
    (tmp_path / "m.tsv").write_text("\n".join([f"{lines[0]}\tdrug", *cells[1:]]) + "\n")
    words = f"train --table {study}/table.biom --tree {study}/tree.nwk --metadata {tmp_path}/m.tsv "
    words += "--rarefy-depth 300 --metadata-column ph --categorical-columns drug --freeze-base "
    words += f"--cv 2 --members deep --device cpu --dry-run --output-dir {tmp_path}/run"
    assert main(words.split()) == 0
    text = capsys.readouterr().err
    assert "losses: ph" in text.splitlines()
    assert text.count("covariate 'drug': 1 of") == 1

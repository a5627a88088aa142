"""Whether the options of `aam pretrain` that no other command has can be used together: its studies and its targets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from aam.config import NO_TREE, DataConfig, PretrainConfig
from aam.errors import shown


def pretraining_problems(config: PretrainConfig) -> list[str]:
    """Return the contradictions between the studies and the targets that an encoder is to learn from."""
    return [*studies_problems(config.data), *target_problems(config), *loss_problems(config)]


def studies_problems(data: DataConfig) -> list[str]:
    """Return why several tables cannot be pretrained on together, if they cannot."""
    trees, tables, several = data.trees, data.tables, len(data.tables) > 1
    given = {
        "--metadata": data.metadata, "--sequences": data.sequences, "--unifrac-matrix": data.unifrac_matrix,
        "--split": data.split, "--split-column": data.split_column, "--cv": data.cv,
        "--group-column": data.group_column,
    }  # fmt: skip
    unused = [name for name, value in given.items() if value is not None]
    twice = [path for path, times in Counter(path.resolve() for path in tables).items() if times > 1]
    unnamed = [name for name in data.study_names if not name.strip() or len(name.splitlines()) > 1]
    missing_trees = [tree for tree in trees if tree != NO_TREE and not Path(tree).is_file()]
    checks = {
        f"--trees: {shown(missing_trees)}: no such file, and not {NO_TREE}": missing_trees != [],
        f"--trees: {len(trees)} for {len(tables)} tables; give one for each, or {NO_TREE} in its place": (
            len(trees) not in (0, len(tables))
        ),
        f"--study-names: {shown(data.study_names)} for {len(tables)} tables; give one for each": (
            len(data.study_names) not in (0, len(tables))
        ),
        f"--study-names: {shown(unnamed)} cannot be read in a report; give each a name on one line": unnamed != [],
        f"--tables: {shown(twice)} is there twice; name each table once": twice != [],
        f"{shown(unused)}: for one table only; samples of several have no common metadata": several and unused != [],
        "--unifrac-metric faith_pd: for one table only": several and data.unifrac_metric == "faith_pd",
        "--hold-out-study: there is one table; name a study of several": bool(data.hold_out_study) and not several,
        "--hold-out-study and --test-size: both choose the test samples; give one of them": (
            bool(data.hold_out_study) and bool(data.test_size)
        ),
    }
    return [problem for problem, holds in checks.items() if holds]


def target_problems(config: PretrainConfig) -> list[str]:
    """Return why the further targets cannot be learned, or not from what is given."""
    data, train, usual = config.data, config.train, PretrainConfig().train
    targets, weight = data.targets, train.targets_penalty
    has_tree = any(tree != NO_TREE for tree in data.trees)
    checks = {
        f"--targets names a target twice: {shown(targets)}": len(set(targets)) < len(targets),
        "--targets taxonomy: --taxonomy is not given; name the taxonomy of the ASVs, .qza or TSV": (
            "taxonomy" in targets and not data.taxonomy
        ),
        f"--taxonomy is {shown(data.taxonomy)}, and nothing learns it; add taxonomy to --targets": (
            "taxonomy" not in targets and data.taxonomy != ()
        ),
        "--targets faith-pd: it is read off a tree; name one by --tree": "faith-pd" in targets and not has_tree,
        "--targets faith-pd and --unifrac-metric faith_pd: both are Faith PD; leave out one of them": (
            "faith-pd" in targets and data.unifrac_metric == "faith_pd" and train.penalty > 0
        ),
        f"--targets is {shown(targets)}, and --targets-penalty 0 gives it no weight; leave out both": (
            targets != () and weight == 0
        ),
        f"--targets-penalty is {weight}, and there are no --targets; name some, or leave it out": (
            targets == () and weight != usual.targets_penalty
        ),
    }
    return [problem for problem, holds in checks.items() if holds]


def loss_problems(config: PretrainConfig) -> list[str]:
    """Return that nothing is learned, where no loss has both a weight and what it needs."""
    data, train = config.data, config.train
    compared = data.unifrac_matrix is not None or any(tree != NO_TREE for tree in data.trees)
    further = bool(data.targets) and train.targets_penalty > 0
    if further or train.nuc_penalty > 0 or train.count_penalty > 0 or (train.penalty > 0 and compared):
        return []
    return [
        f"--nuc-penalty {train.nuc_penalty}, --count-penalty {train.count_penalty}, --penalty {train.penalty} "
        f"{'with' if compared else 'without'} a tree or distances, no --targets with a weight: nothing is "
        "learned; give one of them a weight"
    ]

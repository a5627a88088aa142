"""What each ASV adds to the predictions of a saved model, whatever its members are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from aam.data.collate import rarefied_rows, rows_read
from aam.data.study import EVALUATION, Row, Rows, Study
from aam.data.targets import TargetSpec
from aam.device.options import RuntimeConfig
from aam.explain.effects import BLEND, Matrix, TargetEffects, losses, output_columns
from aam.explain.member_variants import forest_variants, linear_variants
from aam.explain.network_variants import attention_paid, network_variants
from aam.explain.variants import Bools, Floats, Variants, make_variants
from aam.predict.blend import NETWORK, Blend, specs_in_order
from aam.predict.features import Samples
from aam.predict.forest import Forest
from aam.predict.linear import Linear
from aam.predict.network import AsvVectors, encode_table, per_target, run_model
from aam.predict.prediction import with_inputs
from aam.predict.saved_model import SavedModel

# How many samples without an ASV get it for each that has it: the network takes longest.
ADDED_FOR_NETWORK = 1.0
ADDED_FOR_MEMBERS = 4.0

# A network of a smaller weight is not run on variants: its part of an effect is at most that share.
LEAST_WEIGHT = 0.02

# For each target, what each member says: numbers [n, 1] or probabilities [n, classes].
Scores = list[dict[str, Floats]]


@dataclass(frozen=True, eq=False)
class _Draw:
    """One rarefaction of n samples: its reads, its variants, and what each member says of both."""

    reads: Sequence[Row]
    variants: Variants
    base: Scores
    changed: Scores


def explains_network(saved: SavedModel) -> bool:
    """Return whether the network takes part in effects: where it has `LEAST_WEIGHT` for some target."""
    return saved.blend.network_weight >= LEAST_WEIGHT


def _learner_scores(
    blend: Blend, study: Study, rows: Rows, reads: Sequence[Row], variants: Variants
) -> tuple[Scores, Scores]:
    """Return what the learners beside the network say of the samples in one rarefaction, and of their variants."""
    if not blend.learners:
        return [{} for _ in blend.fitted], [{} for _ in blend.fitted]
    X = blend.inputs(Samples.of_reads(study, rows, [reads]))
    base = blend.scores(X)
    flips = variants.changes_presence
    flipped = variants.at(flips)
    flipped = replace(flipped, column=np.searchsorted(X.samples.columns, flipped.column))
    changed: Scores = []
    for fitted, scores in zip(blend.fitted, base, strict=True):
        changed.append({name: values[variants.sample] for name, values in scores.items()})
        for name, learner in fitted.learners.items():
            if isinstance(learner, Forest):
                changed[-1][name][flips] = forest_variants(learner, X, flipped)
            elif isinstance(learner, Linear):
                changed[-1][name][flips] = linear_variants(learner, X, flipped)
    return base, changed


def _drawn(
    saved: SavedModel, study: Study, rows: Rows, rarefaction: int, asvs: AsvVectors | None, config: RuntimeConfig
) -> _Draw:
    """Return one rarefaction of the samples at `rows`, with what the model's learners say of it and of its variants."""
    uses_network = asvs is not None and explains_network(saved)
    per_carrier = ADDED_FOR_NETWORK if uses_network else ADDED_FOR_MEMBERS
    reads = rarefied_rows(study, rows, rarefaction)
    variants = make_variants(reads, per_carrier, uses_network, (saved.seed, rarefaction))
    base, changed = _learner_scores(saved.blend, study, rows, reads, variants)
    if asvs is None or saved.network is None:
        return _Draw(reads, variants, base, changed)
    of_samples = per_target(run_model(saved.network, study, rows, saved.device, config, rarefaction, asvs))
    of_variants = [values[variants.sample] for values in of_samples]
    if uses_network:
        read = rows_read(study, rows, rarefaction)
        of_variants = network_variants(saved.network, study, rows, read, variants, asvs, config)
    for scores, values in zip([*base, *changed], [*of_samples, *of_variants], strict=True):
        scores[NETWORK] = values
    return _Draw(reads, variants, base, changed)


def _in_own_units(saved: SavedModel, study: Study, rows: Rows, values: Sequence[Floats]) -> list[Floats]:
    """Return predictions of each target with numbers in the units of their columns."""
    numbers = len(saved.targets.numeric)
    if not numbers:
        return list(values)
    ids = [study.table.sample_ids[row] for row in rows.tolist()]
    decoded = saved.targets.decode(np.concatenate(values[:numbers], axis=1), study.metadata, ids)
    return [*(decoded[:, [column]] for column in range(numbers)), *values[numbers:]]


def _all_scores(saved: SavedModel, study: Study, rows: Rows, scores: Scores) -> list[dict[str, Floats]]:
    """Return for each target what the whole model and, where there are several, each member says, in own units."""
    blend = saved.blend
    predictions = [{BLEND: values} for values in _in_own_units(saved, study, rows, blend.blend(scores))]
    several = [name for name in scores[0] if name != NETWORK or explains_network(saved)]
    names = several if blend.learners else []
    for name in names:
        member_predictions = _in_own_units(saved, study, rows, [of_target[name] for of_target in scores])
        for of_target, values in zip(predictions, member_predictions, strict=True):
            of_target[name] = values
    return predictions


def _matrix(variants: Variants, values: Floats, shape: tuple[int, int]) -> Matrix:
    return sparse.csr_matrix((values, (variants.sample, variants.column)), shape=shape)


def _carriers(reads: Sequence[Row], asvs: int) -> Matrix:
    sample = np.repeat(np.arange(len(reads)), [len(columns) for columns, _ in reads])
    column = np.concatenate([np.zeros(0, np.int64), *(columns for columns, _ in reads)])
    return sparse.csr_matrix((np.ones(len(column)), (sample, column)), shape=(len(reads), asvs))


def _target_effects(
    spec: TargetSpec, ids: tuple[str, ...], truth: Floats, drawn: _Draw, base: dict[str, Floats],
    changed: dict[str, Floats], asvs: int,
) -> TargetEffects:  # fmt: skip
    """Return the effects on one target in one rarefaction; `base` and `changed` are in own units."""
    variants, shape = drawn.variants, (len(ids), asvs)
    removed, weighted = variants.after == 0, variants.weight > 0
    single = (variants.before > 1) & (variants.after == 1) & ~weighted

    def differences(name: str, which: Bools) -> tuple[Matrix, ...]:
        some = variants.at(which)
        change = base[name][some.sample] - changed[name][which]
        return tuple(_matrix(some, change[:, column], shape) for column in output_columns(spec))

    def raised_loss(name: str) -> Matrix:
        some = variants.at(weighted)
        base_loss = losses(spec, truth, base[name])[some.sample]
        other = losses(spec, truth[some.sample], changed[name][weighted])
        return _matrix(some, some.weight * np.nan_to_num(other - base_loss), shape)

    members = [name for name in base if name != BLEND]
    return TargetEffects(
        spec=spec,
        sample_ids=ids,
        truth=truth,
        prediction=base[BLEND],
        effects=differences(BLEND, removed),
        abundance=differences(BLEND, single),
        losses={name: raised_loss(name) for name in base},
        members={name: differences(name, removed) for name in members},
        carriers=_carriers(drawn.reads, asvs),
    )


def explain_samples(
    saved: SavedModel,
    study: Study,
    sample_ids: Sequence[str],
    truth: Sequence[Floats],
    config: RuntimeConfig,
    passes: int,
) -> list[list[TargetEffects]]:
    """Return the effects on each target, numbers first, in each of `passes` rarefactions of the samples `sample_ids`.

    Parameters
    ----------
    saved : SavedModel
    study : Study
        With the metadata that the model reads.
    sample_ids : sequence of str [n]
    truth : sequence of float64 [n]
        Of each target, in own units or as index of its class; NaN where it is not known.
    config : RuntimeConfig
    passes : int
        Rarefactions, those that predictions are made from.
    """
    study = with_inputs(saved, replace(study, seed=saved.seed))
    rows, specs, network = study.rows(sample_ids), specs_in_order(saved.targets), saved.network
    asvs = None
    if network is not None and saved.blend.network_weight > 0:
        asvs = encode_table(network, study, saved.device, config, rows)
    all_effects: list[list[TargetEffects]] = [[] for _ in specs]
    for number in range(passes):
        draw = EVALUATION - 1 - number
        drawn = _drawn(saved, study, rows, draw, asvs, config)
        attention = None
        if asvs is not None and network is not None and explains_network(saved):
            read = rows_read(study, rows, draw)
            weights = attention_paid(network, study, rows, read, asvs, config)
            attention = _carriers(read, len(study.table.sequences))
            attention.data = np.concatenate(weights)
        base = _all_scores(saved, study, rows, drawn.base)
        changed = _all_scores(saved, study, rows[drawn.variants.sample], drawn.changed)
        for of_target, spec, target_truth, base_scores, other in zip(
            all_effects, specs, truth, base, changed, strict=True
        ):
            effects = _target_effects(
                spec, tuple(sample_ids), target_truth, drawn, base_scores, other, len(study.table.sequences)
            )
            of_target.append(replace(effects, attention=attention))
    return all_effects

"""The network as an estimator of all targets at once."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator

from aam.config import FineTuneConfig
from aam.data.batch import Batch, pad_batch
from aam.data.loader import Collation, collate
from aam.data.rarefaction import EVALUATION
from aam.data.study import Study
from aam.data.targets import Covariates, Targets
from aam.device.distributed import SINGLE
from aam.device.precision import autocast
from aam.model.aam import Aam, HeadConfig, slots_of
from aam.options import RuntimeConfig, not_none
from aam.predict.estimator import Matrix, Samples
from aam.training.inference import (
    WITHOUT_TOKENS,
    EncodedAsvs,
    Encoder,
    FittedNetwork,
    collect,
    encode_table,
    per_target,
    run_model,
)
from aam.typing import Array, Bools, Floats, Rows

if TYPE_CHECKING:
    from aam.engine.checkpoint import State
    from aam.engine.run import TrainingFolder

# Parts of a network that an encoder does not have.
NEW_PARTS = ("target", "labels", "covariates")

# Variants of samples that are predicted at a time.
VARIANT_SAMPLES = 256


@dataclass(eq=False, repr=False)
class Network(BaseEstimator):  # type: ignore[misc]
    """A network that predicts all targets of a study; without targets it is an encoder.

    Parameters
    ----------
    config : FineTuneConfig
        `model.max_bp` is set.
    targets, covariates : Targets, Covariates
    device : torch.device
    encoder : Encoder, optional
        The pretrained network that it starts from.
    encoded : EncodedAsvs, optional
        Vectors of ASVs that networks with the same frozen encoder share.

    Attributes
    ----------
    fitted_ : FittedNetwork
    """

    # Name of the member.
    name = "deep"

    is_centred = False

    config: FineTuneConfig | None = None
    targets: Targets | None = None
    covariates: Covariates | None = None
    device: torch.device | None = None
    encoder: Encoder | None = None
    encoded: EncodedAsvs | None = None
    fitted_: FittedNetwork = field(init=False)
    runtime_: RuntimeConfig = field(init=False)
    asvs_: torch.Tensor = field(init=False)

    @classmethod
    def of(cls, fitted: FittedNetwork) -> Network:
        """The estimator of a network that has been trained."""
        estimator = cls()
        estimator.fitted_ = fitted
        return estimator

    # --- training ---

    def fit(
        self,
        X: Samples,
        y: Sequence[Array],
        groups: Any = None,
        studies: Any = None,
        validation: Bools | None = None,
        checkpoint: TrainingFolder | None = None,
    ) -> Network:
        """Learn from n samples of a study.

        Parameters
        ----------
        X : Samples
            With their study.
        y : sequence of array [n]
            Of each target, numbers first: numbers, NaN if not known, or codes of classes, -1 if not
            known.
        groups : array [n], optional
            Samples of one group are never separated by inner folds.
        studies : array [n], optional
            Not used: a network is not centred by study.
        validation : bool [n], optional
            Samples that choose the best epoch; the others are trained on.
        checkpoint : TrainingFolder, optional
            Gets metrics and checkpoints; training continues from its state, if there is one.

        Raises
        ------
        InputError
            The pretrained encoder fits no weight.
        """
        # Predictions do without the code of training, whose import takes long.
        from aam.training.finetune import HIDDEN_COVARIATES, SupervisedTask, fit_heads, target_heads
        from aam.training.pretrain import make_loaders, train

        config, device, study = not_none(self.config), not_none(self.device), self._labelled(X, y)
        is_validated = np.zeros(len(X), bool) if validation is None else validation
        rows = X.rows[~is_validated], X.rows[is_validated]
        state = None if checkpoint is None else checkpoint.state
        targets, covariates = not_none(self.targets), not_none(self.covariates)
        heads = target_heads(study, config, rows[0], targets, covariates)
        network = self._create(study, heads, rows[0], state).to(device)
        asvs = None
        if config.targets.freeze_base:
            asvs = (self.encoded or EncodedAsvs()).encode(network, study, device, config.runtime)
            for name, parameter in network.named_parameters():
                parameter.requires_grad_(name.startswith(NEW_PARTS))
        if state is None and not self._continues(heads):
            train_groups = None if groups is None else np.asarray(groups)[~is_validated]
            fit_heads(network, study, rows[0], train_groups, asvs, device, config)
        # Masked counts are chosen by the sequences of the ASVs, also where vectors are known.
        tokens = asvs is None or config.train.count_penalty > 0
        collation = Collation(tokens=tokens, distances=network.distance is not None)
        hidden = {"covariate_dropout": HIDDEN_COVARIATES}
        world = SINGLE if checkpoint is None else checkpoint.run.world
        loaders = make_loaders(study, rows, config, collation, world, **hidden)
        task = SupervisedTask(network, config, *loaders, device, asvs, world)
        self.fitted_ = train(task, config, study, heads, checkpoint)
        return self

    def _labelled(self, X: Samples, y: Sequence[Array]) -> Study:
        """The study of the samples with the labels `y`, and none of other samples."""
        study, targets, rows = not_none(X.study), not_none(self.targets), X.rows
        samples, numbers = len(study.table), len(targets.numeric)
        target = np.full((samples, numbers), np.nan, np.float32)
        label = np.full((samples, len(targets.classes)), -1, np.int64)
        for column, values in enumerate(y[:numbers]):
            target[rows, column] = values
        for column, codes in enumerate(y[numbers:]):
            label[rows, column] = codes
        return replace(study, labels=replace(study.labels, target=target, label=label))

    def _create(
        self, study: Study, heads: HeadConfig, train_rows: Rows, state: State | None
    ) -> Aam:
        """A network with the weights of a checkpoint, or of the encoder, or with new ones."""
        from aam.training.pretrain import create_network, scale_network

        config, encoder = not_none(self.config), self.encoder
        new_parts = () if self._continues(heads) else NEW_PARTS
        network = create_network(study, heads, config, encoder, new_parts)
        if state is not None:
            network.load_state_dict(state.part("model"))
            return network
        # The encoder's own samples are read as it reads them.
        train_ids = {study.table.sample_ids[row] for row in train_rows.tolist()}
        is_new = encoder is not None and train_ids.isdisjoint(encoder.seen)
        reads_anew = is_new and not config.targets.freeze_base
        scale_network(network, study, train_rows, encoder, reads_anew)
        return network

    def _continues(self, heads: HeadConfig) -> bool:
        """Whether the encoder has trained heads of the same targets and covariates.

        They go on as they are: a linear model next to their correction would count twice.
        """
        encoder = self.encoder
        if encoder is None or encoder.targets.specs != not_none(self.targets).specs:
            return False
        is_same = replace(encoder.heads, scale=heads.scale) == heads
        return is_same and encoder.covariates == self.covariates

    # --- predictions ---

    @property
    def network(self) -> Aam:
        """The network with its best weights."""
        return self.fitted_.network

    @property
    def computing_device(self) -> torch.device:
        """The device of the network."""
        return next(self.network.parameters()).device

    def centred_on(self, X: Any) -> Network:
        """The network itself, which is not centred by study."""
        return self

    def prepared(
        self, study: Study, rows: Rows, runtime: RuntimeConfig, encoded: EncodedAsvs | None = None
    ) -> Network:
        """The network with the vectors of the ASVs of the samples at `rows`, each encoded once; or
        with those of all ASVs, which networks of one frozen encoder share as `encoded`.
        """
        estimator = copy.copy(self)
        estimator.runtime_ = runtime
        if encoded is None:
            vectors = encode_table(self.network, study, self.computing_device, runtime, rows)
        else:
            vectors = encoded.encode(self.network, study, self.computing_device, runtime)
        estimator.asvs_ = vectors
        return estimator

    def outputs(self, rarefied: Samples) -> list[Floats]:
        """Predictions of each target for rarefied samples, [n, 1] or [n, K]: of their own
        `network_reads`, or of those of the numbered rarefaction.
        """
        if rarefied.network_reads is None:
            study, device = not_none(rarefied.study), self.computing_device
            inputs = self.network, study, rarefied.rows, device, self.runtime_
            return per_target(run_model(*inputs, rarefied.number, self.asvs_))
        parts, places = [], [np.zeros(0, np.int64)]
        for place, batch, vectors in self._batches(rarefied):
            parts.append(per_target(collect(self.network(batch, asvs=vectors), batch)))
            places.append(place)
        back = np.argsort(np.concatenate(places))
        return [np.concatenate(values)[back] for values in zip(*parts, strict=True)]

    def attention(self, rarefied: Samples) -> Matrix:
        """Weight in the attention pool of each ASV of samples with their own `network_reads` reads,
        [n, F]; the sum of a sample is 1.
        """
        network_reads = not_none(rarefied.network_reads)
        by_place = dict[int, Floats]()
        for places, batch, vectors in self._batches(rarefied):
            by_bin = self.network.sample.attention(vectors, slots_of(pad_batch(batch)))
            weights = [row for part in by_bin for row in part.double().cpu().numpy()]
            sized = zip(places.tolist(), weights, batch.sizes, strict=True)
            by_place |= {place: row[:size] for place, row, size in sized}
        attention = network_reads.astype(np.float64)
        attention.data = np.concatenate([by_place[place] for place in range(len(rarefied))])
        return attention

    def _batches(self, rarefied: Samples) -> Iterator[tuple[Rows, Batch, torch.Tensor]]:
        """Yield places among the samples, a batch of them and the vectors of its ASVs, within a
        forward pass.
        """
        study, network_reads = not_none(rarefied.study), not_none(rarefied.network_reads)
        ends, sizes = network_reads.indptr[1:-1], np.diff(network_reads.indptr)
        columns, reads = (np.split(x, ends) for x in (network_reads.indices, network_reads.data))
        rows, order = rarefied.rows, np.argsort(-sizes, kind="stable")
        device = self.computing_device
        self.network.eval()
        with torch.inference_mode(), autocast(self.runtime_, device, in_bf16=False):
            for start in range(0, len(order), VARIANT_SAMPLES):
                places = order[start : start + VARIANT_SAMPLES]
                batch_rows = [(columns[place], reads[place]) for place in places]
                parts = [rows[places]], [batch_rows]
                batch = collate(study, *parts, EVALUATION, WITHOUT_TOKENS).to(device)
                yield places, batch, self.asvs_[not_none(batch.column)]

"""On a GPU: the self-test of the image passes, and the network gives the results of the CPU."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from aam.cli import main
from aam.config import DataConfig, ModelConfig, PretrainConfig, TrainConfig
from aam.data.loader import rarefied_batch
from aam.engine.capture import CapturedSteps
from aam.model.aam import HeadConfig
from aam.options import RunConfig
from aam.training.decisions import make_steps, probe_run

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.gpu


def test_attention_passes_the_self_test():
    selftest = runpy.run_path(str(ROOT / "containers" / "inside" / "selftest.py"))
    report = selftest["check_devices"]()
    assert len(report) == torch.cuda.device_count() > 0


def test_the_network_agrees_with_the_cpu(study_of, tiny, model_of):
    study, model = study_of(**tiny()), model_of(HeadConfig("unifrac", (0.5, 0.2), n_targets=2))
    batch = rarefied_batch(study, np.arange(9), 0)
    expected = model(batch)
    outputs = model.to("cuda")(batch.to(torch.device("cuda")))
    torch.testing.assert_close(outputs.samples.cpu(), expected.samples, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(outputs.distance.cpu(), expected.distance, rtol=1e-4, atol=1e-4)


def test_a_run_and_its_vectors_are_those_of_the_cpu(simulate_study, tmp_path):
    study, losses = simulate_study(), []
    table = f"--table {study}/table.biom"
    sizes = "--embedding-dim 16 --attention-layers 1 --attention-heads 2 --epochs 2"
    training = f"pretrain {table} --tree {study}/tree.nwk --rarefy-depth 500 {sizes}"
    embedding = f"embed --model {tmp_path}/cpu/model {table} --format npy"
    for device in ("cpu", "cuda"):
        on_device = f"--device {device} --output-dir {tmp_path}"
        assert main(f"{training} {on_device}/{device}".split()) == 0
        records = map(json.loads, (tmp_path / device / "metrics.jsonl").read_text().splitlines())
        losses.append([record["val_loss"] for record in records if record["event"] == "epoch"])
        assert main(f"{embedding} {on_device}/vectors-{device}".split()) == 0
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    for name in ("asvs.npy", "samples.npy"):
        on_cpu, on_gpu = (
            np.load(tmp_path / f"vectors-{device}" / name) for device in ("cpu", "cuda")
        )
        np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-4)


def test_steps_are_captured_and_right(simulate_study):
    study = simulate_study()
    data = DataConfig(table=study / "table.biom", tree=study / "tree.nwk", rarefy_depth=500)
    model = ModelConfig(embedding_dim=16, attention_layers=1, attention_heads=2)
    runtime = RunConfig(device="cuda")
    config = PretrainConfig(
        data=data, model=model, train=TrainConfig(batch_size=8), runtime=runtime
    )
    steps = make_steps(config)
    taken = CapturedSteps(steps.setup)
    for epoch in range(4):
        for number, batch in enumerate(steps.task.batches(epoch, 0)):
            window = [steps.task.prepare(batch, number)]
            outcome = taken.take(window)
    assert taken.is_right, "the captured steps differ, or could not be captured"
    assert taken.graphs
    assert not outcome.nonfinite.item()


def test_the_probe_tries_steps_and_workers_of_a_run(simulate_study):
    study = simulate_study()
    data = DataConfig(table=study / "table.biom", tree=study / "tree.nwk", rarefy_depth=500)
    model = ModelConfig(embedding_dim=16, attention_layers=1, attention_heads=2)
    config = PretrainConfig(data=data, model=model, train=TrainConfig(batch_size=8))
    facts = probe_run(config, None, torch.device("cuda"))
    assert facts["workers"]["ok"], facts
    assert facts["capture"]["ok"], facts

"""What a step costs the host: operations, waits and shapes; FLOPs."""

from __future__ import annotations

import json

import pytest
import torch

from aam.cli import main
from aam.device import measure
from benchmarks.__main__ import PROGRAM
from benchmarks.step import Trace, count_flops, step_cost


@pytest.fixture(scope="module")
def study(simulate_study):
    return simulate_study(samples=36, asvs=60, depth=4000)


@pytest.fixture(autouse=True)
def small_product(monkeypatch):
    monkeypatch.setitem(measure.PRODUCT_SIZE, "cpu", 256)


def test_operations_and_host_waits_are_counted():
    x = torch.randn(4, 4, requires_grad=True)
    with Trace() as trace:
        (x.view(16) + 1).sum().backward()
    assert (len(trace.operations), trace.waits) == (4, 0), "add, sum, ones, clone; no views"
    with Trace() as trace:
        x.detach()[x.detach() > 0].sum().item()
        x.detach().nonzero()
        x.detach().new_tensor(1.0)
    assert trace.waits == 4


def test_operations_of_a_product_are_counted():
    left = torch.ones(8, 16)
    right = torch.ones(16, 32)
    assert count_flops(lambda: left @ right) == 2 * 8 * 16 * 32


def test_operations_of_attention_are_counted():
    query, key, value = torch.ones(3, 2, 4, 10, 8, requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    forward = 2 * 2 * 4 * 10 * 10 * (8 + 8)
    assert count_flops(lambda: attend(query, key, value)) == forward
    assert count_flops(lambda: attend(query, key, value).sum().backward()) == forward * 7 // 2


def test_the_numbers_of_a_step_belong_together(study, small_pretraining):
    cost = step_cost(small_pretraining(study, {}, batch_size=6), 2, constant=False)
    assert cost["flops_per_s"] / cost["share"] == pytest.approx(cost["product_flops_per_s"])
    assert 50 < cost["operations_per_step"] < 5000
    assert 1 <= cost["distinct_shapes"] <= 2
    assert cost["graphs"] == 0


@pytest.mark.slow
def test_steps_of_constant_shape_are_counted_for_one_rank_and_for_two(study, tmp_path):
    sizes = "--embedding-dim 16 --attention-layers 2 --attention-heads 2 --batch-size 8 --threads 1"
    words = f"step --table {study}/table.biom --tree {study}/tree.nwk {sizes} --steps 6"
    more = f"--constant-shapes --ranks 2 --rarefy-depth 500 --output {tmp_path}/out.json"
    assert main(f"{words} {more}".split(), PROGRAM) == 0
    report = json.loads((tmp_path / "out.json").read_text())
    most_of_ranks = 1.05 * report["operations_per_step"]
    for numbers, most in ((report, 520), (report["of_ranks"], most_of_ranks)):
        assert 300 < numbers["operations_per_step"] <= most
        assert numbers["host_waits_per_step"] == 0
        assert numbers["graphs"] == numbers["distinct_shapes"]
    assert report["of_ranks"]["ranks"] == 2

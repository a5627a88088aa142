"""What is decided before and while steps are captured; graphs themselves need a GPU."""

from __future__ import annotations

import pytest
import torch

from aam.device.distributed import SINGLE
from aam.device.precision import make_scaler
from aam.engine.capture import CapturedSteps, StepOutcome, check_memory
from aam.engine.step import MicroBatch
from aam.errors import InputError
from aam.options import RuntimeConfig
from tests.engine.conftest import Doubling, options


def test_a_batch_that_does_not_fit_is_refused_with_the_size_that_fits():
    gigabyte = 10**9
    check_memory(gigabyte, 5 * gigabyte, 0.8, 64, 6 * gigabyte)
    expected = r"need about 9.0 GB of the device's 5.0 GB; 32 samples fit. Lower --batch-size"
    with pytest.raises(InputError, match=expected):
        check_memory(gigabyte, 5 * gigabyte, 0.5, 64, 5 * gigabyte)


SCALER = make_scaler(RuntimeConfig(), torch.device("cpu"))


class Shaped(Doubling):
    """Batches of two shapes that may be captured, and one that may not."""

    def shape(self, batch):
        return len(batch) if len(batch) < 3 else None


@pytest.fixture
def steps(monkeypatch):
    """Captured steps whose graphs are a list of the sizes that were replayed, and eager steps."""
    task = Shaped()
    made = CapturedSteps(task, task.configure_optimizer(options()))
    made.is_right = True
    sizes = {"captured": [], "replayed": [], "measured": []}
    outcome = StepOutcome({}, torch.tensor(False))

    def replay(graph, micro):
        sizes["replayed"].append(len(micro.data))
        return outcome

    def measured(eager, batch):
        sizes["measured"].append(len(batch))
        return eager()

    monkeypatch.setattr(
        made, "_capture", lambda _, micro: sizes["captured"].append(len(micro.data))
    )
    monkeypatch.setattr(made, "_replay", replay)
    monkeypatch.setattr(made, "_measured", measured)
    return made, sizes


def test_each_shape_is_captured_once_after_a_step_that_is_not(steps):
    made, sizes = steps
    arguments = (made.task, made.optimizer, SCALER, SINGLE, 1.0)
    for size in (1, 1, 1, 1, 1, 2, 2, 4, 4, 2, 1):
        made(made.task.model, [MicroBatch(torch.ones(size, 3), 0)], *arguments)
    assert sizes["captured"] == [1, 2]
    assert sizes["replayed"] == [1, 1, 2, 2, 1]
    assert sizes["measured"] == [1, 1, 1, 2]


def test_accumulated_batches_are_not_captured(steps):
    made, sizes = steps
    window = [MicroBatch(torch.ones(1, 3), number) for number in range(2)]
    for _ in range(5):
        made(made.task.model, window, made.task, made.optimizer, SCALER, SINGLE, 1.0)
    assert not sizes["replayed"]

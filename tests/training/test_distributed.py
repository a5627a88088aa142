"""The number of devices changes the speed and nothing else; a run that stops on some goes on on
others.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from aam.device.distributed import LOST, rank_environment
from tests.programs import with_sources
from tests.runs import TIMES
from tests.training.ranks import CASES, FAULTS

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "ranks.py"
ON = ("pretraining", "both, accumulated", "classes, average", "captured", "sharded")
ON += ("sharded, accumulated",)
# Relative distance of the weights, and of what every step and epoch says. Ranks multiply batches of
# other sizes, so results differ by rounding. Float64 shows that nothing but rounding differs.
OF_WEIGHTS, OF_RECORDS = 1e-12, 1e-13
EVERY = [(case, size) for size in (2, 4) for case in CASES]


@pytest.fixture(scope="module")
def runs(run_ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What 1, 2 and 4 ranks made of every case."""
    folder = tmp_path_factory.mktemp("ranks")
    for size in (1, 2, 4):
        run_ranks(size, SCRIPT, folder / str(size))
    return {size: folder / str(size) for size in (1, 2, 4)}


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "weights.safetensors")


def apart(one: Path, other: Path) -> float:
    """Norm of the difference of the weights over their norm."""
    a, b = weights_of(one), weights_of(other)
    assert a.keys() == b.keys()
    difference = sum((a[name].double() - b[name].double()).square().sum().item() for name in a)
    return math.sqrt(difference / sum(value.double().square().sum().item() for value in a.values()))


@pytest.mark.parametrize(("case", "size"), EVERY)
def test_ranks_equal_one_device(runs, case, size):
    assert apart(runs[1] / case, runs[size] / case) < OF_WEIGHTS
    one, several = (json.loads((runs[n] / case / "records.json").read_text()) for n in (1, size))
    # Two optimizer steps in each of seven epochs at the least, and what each epoch says.
    assert len(one) == len(several) >= 21
    for a, b in zip(one, several, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            if isinstance(value, str):
                assert b[name] == value
            elif name not in TIMES:
                assert b[name] == pytest.approx(value, rel=OF_RECORDS, abs=OF_RECORDS), (a, b)


def test_training_moved_the_weights(runs):
    """Else the others would be equal for nothing."""
    for case in CASES:
        records = json.loads((runs[1] / case / "records.json").read_text())
        losses = [
            record["train_loss"]
            for record in records
            if record["event"] == "epoch" and record["epoch"]
        ]
        assert losses[-1] < losses[0], case


@pytest.fixture(scope="module")
def interrupted(runs, run_ranks, tmp_path_factory) -> Path:
    """States after four steps on 4 ranks, from runs that then went on to their end."""
    folder = tmp_path_factory.mktemp("states")
    run_ranks(4, SCRIPT, folder / "ran", ";".join(ON), folder / "states")
    for case in ON:
        assert apart(folder / "ran" / case, runs[4] / case) == 0, "to save changes nothing"
    return folder / "states"


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_run_on_four_goes_on_on_any_number(runs, run_ranks, interrupted, tmp_path, size):
    """Bit by bit on as many, within the tolerances on fewer."""
    run_ranks(size, SCRIPT, tmp_path / "ran", ";".join(ON), interrupted)
    for case in ON:
        difference = apart(tmp_path / "ran" / case, runs[4] / case)
        assert difference == 0 if size == 4 else difference < OF_WEIGHTS, case


@pytest.fixture(scope="module", params=[2, 4])
def faults(request, run_ranks, tmp_path_factory) -> list[Path]:
    """What ranks made of faults of rank 1, for each rank a folder."""
    folder = tmp_path_factory.mktemp("faults")
    run_ranks(request.param, SCRIPT, folder, ";".join((*FAULTS, "wish")))
    return [folder / f"{{}}/rank{rank}.json" for rank in range(request.param)]


def ends(faults: list[Path], fault: str) -> list[dict[str, object]]:
    return [json.loads(Path(str(path).format(fault)).read_text()) for path in faults]


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "memory"])
def test_where_one_rank_cannot_use_graphs_all_take_eager_steps(faults, fault):
    first, *others = ends(faults, fault)
    assert others == [first] * len(others)
    assert (first["captures"], first["steps"]) == (False, 9)


def test_where_one_rank_lacks_memory_all_refuse_the_batch_size(faults):
    for rank in ends(faults, "memory"):
        assert rank["end"].startswith("--batch-size: the largest batches need about")


def test_what_one_rank_wishes_reaches_all_in_the_same_step(faults):
    """It travels with the gradients of the next step, captured ones too."""
    for rank in ends(faults, "wish"):
        assert rank["captures"]
        assert rank["agreed"] == [0, 0, 2, 0, 0, 2, 0, 0, 0]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_wait_for_one_that_hangs_end_and_name_it(size, tmp_path):
    words = [sys.executable, str(SCRIPT), str(tmp_path), "hang"]
    environment = {**rank_environment(size), **with_sources(), "OMP_NUM_THREADS": "1"}
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
    ranks = []
    for rank, place in enumerate(places):
        with (tmp_path / f"errors{rank}").open("w") as errors:
            ranks.append(subprocess.Popen(words, env=environment | place, stderr=errors))
    for rank in (0, *range(2, size)):
        ranks[rank].wait(timeout=400)
        errors = (tmp_path / f"errors{rank}").read_text()
        assert ranks[rank].returncode == 1
        # Rank 0 keeps the store; those that look after it has ended, or whose exchange ends with
        # it, know only that.
        late = (
            "rank 0 in step 2 at .*, rank 1 in step 1 at "
            if rank == 0
            else "not done after 0.25 min"
        )
        assert re.search(late, errors) or (rank and LOST in errors)
    ranks[1].kill()
    ranks[1].wait()


COMPILED = """
import itertools, torch
from aam.config import ModelConfig, PretrainConfig, TrainConfig
from aam.device.distributed import end_rank, process_group
from aam.options import RunConfig
from aam.training.decisions import steps_of
from tests.data.studies import make_study, random_counts
torch.set_num_threads(1)
runtime = RunConfig(device="cpu", threads=1, distributed=True)
sizes = ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30)
config = PretrainConfig(model=sizes, train=TrainConfig(batch_size=4), runtime=runtime)
with process_group(runtime) as world:
    eager, compiled = (
        steps_of(config, make_study(**random_counts(samples=24, asvs=40)), torch.device("cpu"),
                 world=world)
        for _ in range(2)
    )
    for steps in (eager, compiled):
        steps.task.use_constant_shapes()
    compiled.task.compile_losses("aot_eager")
    for number, batch in enumerate(itertools.islice(eager.task.batches(0, 0), 3)):
        eager.step(batch, number)
        compiled.step(batch, number)
    torch.testing.assert_close(compiled.losses, eager.losses, rtol=1e-5, atol=0)
    pairs = zip(eager.model.parameters(), compiled.model.parameters(), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    print(sorted(compiled.task.compiled), dict(torch._dynamo.utils.counters["graph_break"]), end="")
end_rank(0)
"""


def test_all_parts_of_a_step_between_exchanges_are_compiled_whole(run_ranks):
    parts = ["_encoded_asvs", "_encoded_samples", "_joint_losses"]
    assert {*run_ranks(2, "-c", COMPILED)} == {f"{parts} {{}}"}

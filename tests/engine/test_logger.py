"""Metrics as lines that survive, in TensorBoard's files and in trackers, which end no run where
they fail.
"""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aam.engine import logger
from aam.engine.checkpoint import State
from aam.engine.logger import RunLogger, Tracking, metrics_of


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def step(number: int) -> dict:
    return {"event": "step", "step": number, "lr": 0.1, "train_loss": 1 / number}


def epoch(number: int) -> dict:
    losses = {"train_loss": 2.0, "val_loss": 1.5}
    return {"event": "epoch", "epoch": number, "best": 1, **losses, "samples_per_s": 3.0}


def board_of(folder: Path) -> EventAccumulator:
    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    return board


def test_records_are_lines_and_scalars(tmp_path, caplog):
    with RunLogger(tmp_path, "pretrain", 20, 2) as logger:
        logger.record({"event": "step", "step": 9, "lr": 0.1})
        logger.record(step(10))
        logger.record(epoch(1))
    written = [(record["event"], record["step"]) for record in records(tmp_path)]
    assert written == [("step", 10), ("epoch", 10)]
    (loss,) = board_of(tmp_path).Scalars("step/train_loss")
    assert (loss.step, loss.value) == (10, pytest.approx(0.1))
    assert board_of(tmp_path).Scalars("epoch/val_loss")[0].value == 1.5


def test_the_terminal_shows_the_units_of_metrics(tmp_path, caplog):
    with (
        caplog.at_level("INFO", "aam"),
        RunLogger(tmp_path, "train", 20, 2, units={"val_mae": "(standardized)"}) as logger,
    ):
        logger.record({**epoch(1), "val_mae": 0.25})
    assert "val_loss 1.5, val_mae 0.25 (standardized), samples_per_s 3" in caplog.text
    assert records(tmp_path)[0]["val_mae"] == 0.25


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path):
    with RunLogger(tmp_path, "pretrain", 40, 4) as logger:
        logger.record(step(10))
        facts = {"logger": json.loads(json.dumps(logger.state()))}
        state = State({}, facts, {"metrics.jsonl": logger.text})
        logger.record(step(20))
        logger.record(epoch(1))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "st')
    with RunLogger(tmp_path, "pretrain", 40, 4, state) as logger:
        logger.record(step(11))
    assert [record["step"] for record in records(tmp_path)] == [10, 11]
    assert [loss.step for loss in board_of(tmp_path).Scalars("step/train_loss")] == [10, 11]
    assert records(tmp_path)[1]["seconds"] >= facts["logger"]["seconds"]


def test_lines_that_could_not_be_written_are_written_later(tmp_path, monkeypatch, caplog):
    with RunLogger(tmp_path, "pretrain", 20, 2) as logger:
        logger.record(step(10))
        opening = Path.open

        def full(self: Path, *arguments: object, **options: object):
            if self.name == "metrics.jsonl":
                raise OSError(28, "No space left on device")
            return opening(self, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", full)
            logger.record(epoch(1))
        assert "training continues, and it is tried again" in caplog.text
        assert len(records(tmp_path)) == 1
        logger.record(step(20))
    assert [record["event"] for record in records(tmp_path)] == ["step", "epoch", "step"]


# --- trackers hold what metrics.jsonl holds, also after a run was resumed ----------------------

RECORDS = [
    {"event": "step", "step": 10, "epoch": 1, "train_loss": 0.5, "seconds": 0.25},
    {"event": "epoch", "step": 12, "epoch": 1, "val_loss": 0.75, "val_r2": math.nan, "note": "a"},
    {"event": "epoch", "step": 24, "epoch": 2, "val_loss": 0.625, "val_r2": 0.125, "note": ""},
]
EXPECTED = {(n, r["step"]): value for r in RECORDS for n, value in metrics_of(r).items()}


# Finds the metrics of the one offline run below the folder.
READ_WANDB = """
from wandb.proto.wandb_internal_pb2 import Record
(path,) = Path("wandb").glob("offline-run-*/*.wandb")
data, place, found, parts = path.read_bytes(), 7, [], b""
# The format of LevelDB's log: blocks of 32 KiB; before each record 4 bytes of checksum, 2 of
# length, 1 of kind.
while place < len(data):
    if 32768 - place % 32768 < 7:
        place += 32768 - place % 32768
    size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
    parts += data[place + 7 : place + 7 + size]
    place += 7 + size
    if kind not in (1, 4):
        continue
    record = Record()
    record.ParseFromString(parts)
    parts = b""
    items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
    step = items.get("step")
    found += [(key, step, float(value)) for key, value in items.items() if key != "step" and not key.startswith("_")]
"""


def needs(module: str):
    absent = importlib.util.find_spec(module) is None
    reason = f"{module} is not installed: pip install 'attention-all-microbes[{module}]'"
    return pytest.mark.skipif(absent, reason=reason)


def run_apart(
    folder: Path, name: str, reader: str, later: str = ""
) -> dict[tuple[str, int], float]:
    """Track RECORDS, the first of them as those of an interrupted run, in a process of its own;
    return what is read.

    `reader` finds it in that process, `later` in another one after its end.
    """
    source = f"""
import json
from pathlib import Path
from aam.engine.logger import Tracking
records = json.loads(Path("records.json").read_text())
text = json.dumps(records[0]) + "\\n"
tracking = Tracking({name!r}, Path("."), "train fold 0", {{"train": {{"lr": 0.001}}}}, text)
for record in records[1:]:
    tracking.record(record)
tracking.close(failed=False)
assert tracking.tracker is not None
found = []
{reader}
print("READ" + json.dumps(found))
"""
    first = "import json\nfrom pathlib import Path\n"
    sources = [source, f"{first}{later}\nprint('READ' + json.dumps(found))"]
    (folder / "records.json").write_text(json.dumps(RECORDS))
    for code in sources if later else sources[:1]:
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return {(name, step): value for name, step, value in json.loads(done.stdout.split("READ")[1])}


def check(found: dict[tuple[str, int], float]) -> None:
    assert found.keys() == EXPECTED.keys()
    assert list(found.values()) == pytest.approx([EXPECTED[key] for key in found], nan_ok=True)


@pytest.mark.slow
@needs("mlflow")
def test_mlflow_holds_the_records(tmp_path):
    reader = """
client, run = tracking.tracker.client, tracking.tracker.run
data = client.get_run(run).data
assert data.params == {"train.lr": "0.001"}, data.params
assert client.get_run(run).info.status == "FINISHED"
found = [(m.key, m.step, m.value) for name in data.metrics for m in client.get_metric_history(run, name)]
"""
    check(run_apart(tmp_path, "mlflow", reader))
    assert {path.name for path in tmp_path.iterdir()} == {"records.json", "mlruns"}


@pytest.mark.slow
@needs("wandb")
def test_wandb_holds_the_records_offline(tmp_path):
    check(run_apart(tmp_path, "wandb", "", READ_WANDB))


def test_a_tracker_that_fails_ends_no_run(monkeypatch, tmp_path, caplog):
    class Broken:
        def __init__(self, folder, title, options):
            assert options == {"train.lr": 0.1}

        def log(self, metrics, step):
            raise ConnectionError("the server is away")

        def close(self, failed):
            raise AssertionError("not called any more")

    monkeypatch.setitem(logger.TRACKERS, "broken", Broken)
    kept = Tracking("broken", tmp_path, "train", {"train": {"lr": 0.1}}, "")
    for record in RECORDS:
        kept.record(record)
    kept.close(failed=False)
    assert caplog.text.count("the server is away; training continues without it") == 1

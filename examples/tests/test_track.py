"""Trackers hold what metrics.jsonl holds."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from aam.engine.logger import metrics_of
from aam.errors import InputError
from examples.track import track

RECORDS = [
    {"event": "step", "step": 10, "epoch": 1, "train_loss": 0.5, "seconds": 0.25},
    {"event": "epoch", "step": 12, "epoch": 1, "val_loss": 0.75, "val_r2": math.nan, "note": "a"},
    {"event": "epoch", "step": 24, "epoch": 2, "val_loss": 0.625, "val_r2": 0.125, "note": ""},
]
EXPECTED = {(n, r["step"]): value for r in RECORDS for n, value in metrics_of(r).items()}

READ_MLFLOW = """
import os
import mlflow
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
client = mlflow.MlflowClient(Path("run/mlruns").resolve().as_uri())
(run,) = client.search_runs([client.get_experiment_by_name("aam").experiment_id])
assert run.data.params == {"train.lr": "0.001"}, run.data.params
assert run.info.status == "FINISHED"
names = run.data.metrics
found = [(m.key, m.step, m.value) for name in names for m in client.get_metric_history(run.info.run_id, name)]
"""

# Finds the metrics of the one offline run below the folder.
READ_WANDB = """
from wandb.proto.wandb_internal_pb2 import Record
(path,) = Path("run/wandb").glob("offline-run-*/*.wandb")
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


@pytest.mark.slow
@pytest.mark.parametrize(("tracker", "reader"), [("mlflow", READ_MLFLOW), ("wandb", READ_WANDB)])
def test_a_tracker_holds_the_records(tracker, reader, tmp_path):
    if importlib.util.find_spec(tracker) is None:
        pytest.skip(f"{tracker} is not installed: pip install 'attention-all-microbes[{tracker}]'")
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"inputs": {}, "config": {"train": {"lr": 0.001}}}))
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in RECORDS))
    words = ["-m", "examples.track", tracker, str(run)]
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, *words], cwd=root, check=True)
    source = f"import json\nfrom pathlib import Path\n{reader}\nprint('READ' + json.dumps(found))"
    words = [sys.executable, "-c", source]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    read = json.loads(done.stdout.split("READ")[1])
    found = {(name, step): value for name, step, value in read}
    assert found.keys() == EXPECTED.keys()
    assert list(found.values()) == pytest.approx([EXPECTED[key] for key in found], nan_ok=True)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no run.json with metrics.jsonl, expected the folder"):
        track("mlflow", tmp_path)

"""Training with --track: a local MLflow server, and Weights & Biases offline, hold what
metrics.jsonl holds.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aam.engine.logger import metrics_of
from tests.engine.test_logger import READ_WANDB, needs

pytestmark = pytest.mark.slow

OFFLINE = {"PYTHONPATH": str(Path(__file__).parents[2]), "NO_PROXY": "127.0.0.1"}
START_LIMIT = 240


def python(source: str, folder: Path, **environment: str) -> str:
    """Run Python apart, as the trackers leave threads and settings behind, and return what it
    printed.
    """
    words, settings = [sys.executable, "-c", source], os.environ | OFFLINE | environment
    return subprocess.run(
        words, cwd=folder, env=settings, capture_output=True, text=True, check=True
    ).stdout


def train(
    study: Path, folder: Path, tracker: str, **environment: str
) -> dict[tuple[str, int], float]:
    """Train in `folder` with the tracker; return what metrics.jsonl holds, by metric and step."""
    words = (
        f"train --table {study}/table.biom --metadata {study}/metadata.tsv --metadata-column "
        "ph --threads 1"
    )
    words += (
        " --group-column subject --rarefy-depth 300 --embedding-dim 16 --attention-layers 1 "
        "--attention-heads 2"
    )
    words += f" --members deep --epochs 2 --track {tracker} --output-dir run"
    python(
        f"import sys; from aam.cli.main import main; sys.exit(main({words.split()}))",
        folder,
        **environment,
    )
    records = [
        json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    return {
        (name, one["step"]): value for one in records for name, value in metrics_of(one).items()
    }


def check(printed: str, expected: dict[tuple[str, int], float]) -> None:
    """Compare what a tracker printed with the metrics of the run."""
    found = {
        (name, step): float(value) for name, step, value in json.loads(printed.split("READ")[1])
    }
    assert len(found) > 10
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == value or (math.isnan(value) and math.isnan(found[key])), key


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of an MLflow server on this machine, with its records in SQLite."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = (
        f"-m mlflow server --host 127.0.0.1 --port {port} --workers 1 --backend-store-uri "
        "sqlite:///mlflow.db"
    )
    with (tmp_path / "server.log").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *words.split()],
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        waited_until = time.monotonic() + START_LIMIT
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            alive = process.poll() is None and time.monotonic() < waited_until
            assert alive, (tmp_path / "server.log").read_text()[-2000:]
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


@needs("mlflow")
@pytest.mark.skipif(
    importlib.util.find_spec("flask") is None,
    reason="no server in mlflow-skinny: pip install mlflow",
)
def test_an_mlflow_server_holds_what_a_run_has_recorded(study, server, tmp_path):
    expected = train(study, tmp_path, "mlflow", MLFLOW_TRACKING_URI=server)
    reader = f"""
import importlib.util
import json
from mlflow import MlflowClient
client = MlflowClient({server!r})
experiment = client.get_experiment_by_name("aam")
(run,) = client.search_runs([experiment.experiment_id])
assert run.info.status == "FINISHED"
assert run.data.params["train.epochs"] == "2", run.data.params
metrics = (one for name in run.data.metrics for one in client.get_metric_history(run.info.run_id, name))
print("READ" + json.dumps([(one.key, one.step, one.value) for one in metrics]))
"""
    check(python(reader, tmp_path), expected)
    assert not (tmp_path / "run" / "mlruns").exists()


@needs("wandb")
def test_wandb_offline_holds_what_a_run_has_recorded(study, tmp_path):
    expected = train(study, tmp_path, "wandb")
    reader = (
        f"import json\nfrom pathlib import Path\n{READ_WANDB}\nprint('READ' + json.dumps(found))"
    )
    check(python(reader, tmp_path / "run"), expected)

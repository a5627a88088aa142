"""The probe: each way in which a child process fails, and the verdicts that are kept."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
import torch

from aam.device import probe
from aam.device.distributed import World
from aam.device.probe import ProbeSpec, Verdict, check_alike, verdict
from aam.errors import InputError

CPU = torch.device("cpu")
SUM = ProbeSpec("tests.device.trials:add", {"numbers": [1.5, 2.25]}, CPU)
IN_PROCESS = replace(SUM, isolated=False)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("AAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def failing(how: str, seconds: float = 60.0, isolated: bool = True) -> Verdict:
    spec = ProbeSpec("tests.device.trials:fail", {"how": how}, CPU, seconds, isolated=isolated)
    return verdict("test", spec)


def test_a_child_answers_whatever_it_prints_and_is_no_rank(monkeypatch, caplog):
    monkeypatch.setenv("RANK", "3")
    with caplog.at_level("INFO", "aam"):
        first = verdict("sums", SUM)
        again = verdict("sums", SUM)
    assert first.ok
    assert (first.reason, first.facts["sum"], first.facts["rank"]) == (
        "the sum is 3.75",
        3.75,
        None,
    )
    assert first == again, "kept"
    assert first.seconds > 0
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("probe: sums works: the sum is 3.75 (")
    assert lines[1].endswith("s, tried earlier)")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        pytest.param("crash", "its process ended with SIGSEGV", marks=pytest.mark.slow),
        pytest.param(
            "killed", "its process was killed (SIGKILL); memory may be full", marks=pytest.mark.slow
        ),
        pytest.param("nonsense", "its answer cannot be read", marks=pytest.mark.slow),
        ("exit", "its process ended with status 1: AssertionError: the driver is too old"),
    ],
)
def test_each_end_of_a_child_is_a_reason_and_touches_nothing(how, reason, caplog):
    outcome = failing(how)
    assert (outcome.ok, outcome.reason) == (False, reason)
    assert f"probe: test does not work here: {reason} (" in caplog.text


@pytest.mark.slow
def test_a_child_that_hangs_ends_with_all_that_it_started():
    outcome = failing("children", seconds=12)
    assert outcome.reason == "not done within 12 s"
    assert outcome.seconds < 30
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [words for words in commands if "import time; time.sleep(600)" in words]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("refusal", "Cannot copy between CPU and CUDA tensors during CUDA graph capture"),
        ("wrong", "off by 0.25 against eager"),
        ("full", "memory may be full: HIP out of memory. Tried to allocate 2.00 GiB"),
        ("busy", "CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        ("compiler", "backend='inductor' raised: CompilationError: at 3:1 int1"),
        ("C++", "C++ compile error error: no type int1"),
        ("CUDA", "CUDA error: bad address"),
        ("no JSON", "Object of type device is not JSON serializable"),
    ],
)
def test_an_error_is_a_reason_in_one_line(how, reason, cache):
    outcome = failing(how, isolated=False)
    assert (outcome.ok, outcome.reason) == (False, reason)
    # What passes is tried again next time.
    assert bool([*cache.glob("*.json")]) == (how not in ("full", "busy"))


def test_no_process_can_be_started(monkeypatch):
    monkeypatch.setattr("sys.executable", "/missing/python")
    outcome = verdict("sums", SUM)
    assert (outcome.ok, outcome.facts) == (False, {})
    assert outcome.reason.startswith("no process could be started (No such file")


# --- the verdicts that are kept ------------------------------------------------------------------


@pytest.fixture
def trials(monkeypatch) -> list[str]:
    """The trials that really ran."""
    made, outcome = [], probe._outcome

    def counted(request):
        made.append(request["trial"])
        return outcome(request)

    monkeypatch.setattr(probe, "_outcome", counted)
    return made


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"numbers": [1.5, 2.5]}},
        {"refresh": True},
        {"trial": "tests.device.trials:fail"},
    ],
)
def test_other_options_are_another_question(trials, change):
    for spec in (IN_PROCESS, IN_PROCESS, replace(IN_PROCESS, **change)):
        verdict("sums", spec)
    assert len(trials) == 2


@pytest.mark.parametrize(
    ("place", "value"),
    [("AAM_IMAGE", "sha256:2"), ("torch", "2.99"), ("driver", "amdgpu 6.10"), ("name", "MI300A")],
)
def test_another_machine_is_another_question(trials, monkeypatch, place, value):
    cuda = replace(IN_PROCESS, device=torch.device("cuda"))
    monkeypatch.setattr(probe, "device_name", lambda device: "MI250X")
    monkeypatch.setattr(probe, "driver_version", lambda: "amdgpu 6.3")
    verdict("sums", cuda)
    verdict("sums", cuda)
    if place == "AAM_IMAGE":
        monkeypatch.setenv(place, value)
    elif place == "torch":
        monkeypatch.setattr(torch, "__version__", value)
    else:
        name = "device_name" if place == "name" else "driver_version"
        monkeypatch.setattr(probe, name, lambda *_: value)
    verdict("sums", cuda)
    assert len(trials) == 2


def test_damaged_and_foreign_files_are_tried_again(trials, cache):
    kept = verdict("sums", IN_PROCESS)
    (path,) = cache.iterdir()
    content = json.loads(path.read_text())
    damages = [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        json.dumps({**content, "verdict": {"ok": 1}}).encode(),
        json.dumps({**content, "verdict": {**content["verdict"], "seconds": "2"}}).encode(),
        json.dumps({**content, "question": {**content["question"], "device": "A100"}}).encode(),
    ]
    for damage in damages:
        path.write_bytes(damage)
        assert verdict("sums", IN_PROCESS).facts == kept.facts
    assert len(trials) == 1 + len(damages)
    path.unlink()
    path.mkdir()
    assert verdict("sums", IN_PROCESS).ok, "a folder in its place"


@pytest.mark.parametrize("place", ["missing", "a file", "read-only", "no home"])
def test_storage_that_takes_nothing_ends_no_run(tmp_path, monkeypatch, caplog, place):
    caplog.set_level("INFO", "aam")
    folder = tmp_path / "storage"
    if place == "a file":
        folder.write_text("")
    if place == "read-only":
        folder = Path("/proc/aam")
    monkeypatch.setenv("AAM_CACHE", str(folder))
    if place == "no home":
        for name in ("AAM_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(folder))
    assert verdict("sums", IN_PROCESS).ok
    assert folder.is_dir() == (place in ("missing", "no home")) == ("not kept" not in caplog.text)


# --- ranks ---------------------------------------------------------------------------------------


class Ranks:
    """Two ranks of which the first has answered: the other gets its answers in their order."""

    def __init__(self) -> None:
        self.size, self.is_main, self.answers = 2, True, []

    def broadcast(self, facts):
        if not self.is_main:
            return self.answers.pop(0)
        self.answers.append(facts)
        return facts


def test_rank_0_tries_and_tells_the_others(trials, cache, monkeypatch):
    world = Ranks()
    first = verdict("sums", replace(IN_PROCESS, world=world))
    world.is_main = False
    monkeypatch.setenv("AAM_CACHE", str(cache / "other"))
    assert verdict("sums", replace(IN_PROCESS, world=world)) == first
    assert len(trials) == 1
    assert not (cache / "other").exists(), "only rank 0 writes"


# --- ranks whose machines differ ------------------------------------------------------------------


@dataclass(frozen=True)
class Unlike(World):
    """Four ranks, the last of which is on another machine."""

    changes: dict[str, str] = field(default_factory=dict)

    def gather_facts(self, facts):
        return [facts, facts, facts, {**facts, "node": "n2", **self.changes}]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        (
            {"driver": "amdgpu 6.12"},
            r"^driver: rank 0 \(.+\) none, rank 3 \(n2\) amdgpu 6.12; start",
        ),
        (
            {"torch": "2.7.1"},
            rf"torch: rank 0 .* {re.escape(torch.__version__)}, rank 3 \(n2\) 2.7.1",
        ),
        ({"image": "sha256:ab"}, r"image: rank 0 \(.+\) none, rank 3 \(n2\) sha256:ab"),
        (
            {"aam": "0.1.0", "device": "cuda"},
            r"aam: .*\n?device: rank 0 \(.+\) cpu, rank 3 .* cuda",
        ),
    ],
)
def test_ranks_on_machines_that_differ_are_refused_before_any_work(changes, problem, monkeypatch):
    monkeypatch.delenv("AAM_IMAGE", raising=False)
    world = Unlike(0, 4, changes=changes)
    if not problem:
        check_alike("cpu", world)
        return
    with pytest.raises(InputError) as raised:
        check_alike("cpu", world)
    assert re.search(problem, "\n".join(raised.value.problems))


def test_a_rank_without_the_device_ends_all_ranks_alike():
    with pytest.raises(
        InputError, match=r"device: .* is not available here.*, rank 3 \(n2\) MI300A"
    ):
        check_alike("cuda", Unlike(0, 4, changes={"device": "MI300A"}))


# --- a trial of several ranks, each in a child process --------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "how", "ok", "reason"),
    [
        (2, "right", True, "2 ranks met"),
        (4, "crash", False, "rank 1: its process ended with SIGSEGV"),
        (2, "wrong", False, "rank 1: off by 0.25 against eager"),
        (2, "nonsense", False, "rank 1: its answer cannot be read"),
        # The others wait for it as long as it hangs, and the first that is asked is named.
        (4, "hang", False, "rank [0-3]: not done within 25 s"),
    ],
)
def test_ranks_try_together_and_all_obey_the_verdict_that_is_kept(
    run_ranks, cache, size, how, ok, reason
):
    script = Path(__file__).with_name("probing.py")
    (said,) = {*run_ranks(size, script, how)}
    assert json.loads(said)[0] is ok
    assert re.fullmatch(reason, json.loads(said)[1])
    (kept,) = cache.glob("meet-*.json")
    verdict = json.loads(kept.read_text())["verdict"]
    assert [verdict["ok"], verdict["reason"]] == json.loads(said)

"""What joins the ranks: measured between two processes, and read from a simulated node's network and NCCL's log."""

from __future__ import annotations

import json

import pytest

from aam.cli.main import main
from aam.commands import doctor
from examples.runs import run_ranks

GIGABYTE = 1e9
REPORT = {
    "ranks": 8,
    "nodes": 2,
    "backend": "nccl",
    "transport": "AWS Libfabric",
    "interfaces": {"hsn0": 25e9, "hsn1": 25e9},
    "bytes": 2**26,
    "all_reduce": 40e9,
    "expected": 50e9,
}


@pytest.mark.slow
def test_two_ranks_measure_an_all_reduce(tmp_path):
    words = ["doctor", "--ranks", "--device", "cpu", "--threads", "1", "--output", str(tmp_path / "ranks.json")]
    printed = "".join(run_ranks(2, words, "aam"))
    report = json.loads((tmp_path / "ranks.json").read_text())
    assert (report["ranks"], report["nodes"], report["transport"]) == (2, 1, "TCP")
    assert 1e6 < report["all_reduce"] < 1e12
    assert report["expected"] is None
    assert "2 ranks on 1 nodes, gloo, between nodes TCP\nall-reduce of 67 MB: " in printed


def test_one_rank_has_nothing_to_measure(capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert main(["doctor", "--ranks"]) == 2
    assert "no rank stands in the environment" in capsys.readouterr().err


def test_line_rates_are_those_of_the_interfaces_that_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "NETWORK", tmp_path)
    for name, speed in (("hsn0", "200000\n"), ("hsn1", "200000\n"), ("hsn2", "-1\n"), ("eth0", "1000\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(speed)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "hsn0,hsn1,hsn2,hsn3")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "hsn1,hsn0")
    assert doctor.line_rates("nccl") == {"hsn0": 25 * GIGABYTE, "hsn1": 25 * GIGABYTE}
    assert doctor.line_rates("gloo") == {"hsn1": 25 * GIGABYTE}
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert doctor.line_rates("gloo") == {}


@pytest.mark.parametrize(
    ("log", "transport"),
    [
        ("n1:7:9 [0] NCCL INFO Using network AWS Libfabric\n", "AWS Libfabric"),
        ("n1:7:9 [0] NCCL INFO NET/Plugin: none\nn1:7:9 [0] NCCL INFO Using network Socket\n", "Socket"),
        ("", "unknown: NCCL's log names no network"),
    ],
)
def test_the_transport_is_read_from_the_log(tmp_path, monkeypatch, log, transport):
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        # So that the test's end restores it.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "log").write_text(log)
    doctor.record_transport(tmp_path / "log")
    assert doctor.transport_of("nccl") == transport
    assert doctor.transport_of("gloo") == "TCP"


def test_ranks_below_the_line_rate_are_noted():
    lines = doctor.describe_ranks(REPORT)
    assert lines == [
        "8 ranks on 2 nodes, nccl, between nodes AWS Libfabric",
        "all-reduce of 67 MB: 40 GB/s; expected at most 50 (hsn0 25 GB/s, hsn1 25 GB/s)",
    ]
    lines = doctor.describe_ranks({**REPORT, "transport": "Socket", "all_reduce": 2e9})
    assert "note: less than 50% of the line rate; docs/rocm.md" in lines[2]
    lines = doctor.describe_ranks({**REPORT, "expected": None, "interfaces": {}})
    assert "NCCL_SOCKET_IFNAME names no interface" in lines[1]

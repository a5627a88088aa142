"""The findings of the doctor about a machine, from a report of what was measured on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aam.device.doctor import Finding, collect_findings
from aam.device.platform import Platform, platform_of, read_facts


@pytest.fixture
def facts() -> dict[str, Any]:
    facts = read_facts(torch.device("cpu"))
    return {**facts, "environment": {}, "mended": []}


@pytest.fixture
def platform(facts) -> Platform:
    return platform_of(facts)


def report(**changes: Any) -> dict[str, Any]:
    healthy = {
        "attention": {"results": {}, "chosen": {}},
        "operations": {},
        "cpu_operations": (),
        "compile": {},
        "unseen": False,
    }
    return {**healthy, **changes}


def test_a_healthy_machine_has_no_findings(platform, facts):
    assert collect_findings(platform, facts, report()) == []


def test_an_operation_that_is_wrong_names_the_rule_that_routes_it(platform, facts):
    operations = {"fft": {"wrong": True, "message": "off by 1"}, "gelu": {"wrong": False, "message": "off by 0"}}
    (finding,) = collect_findings(platform, facts, report(operations=operations))
    assert finding == Finding("wrong", "operation fft: off by 1", "AAM_ROUTE=fft=cpu")
    (finding,) = collect_findings(platform, facts, report(operations=operations, cpu_operations=("fft",)))
    assert finding == Finding("wrong", "operation fft: off by 1", "aam runs it on the CPU")
    operations["fft"]["wrong"] = False
    (finding,) = collect_findings(platform, facts, report(operations=operations, cpu_operations=("fft",)))
    assert finding == Finding("note", "operation fft runs on the CPU", "AAM_ROUTE=fft=device")


def test_attention_compilers_and_devices_that_fail_are_findings(platform, facts):
    results = {"float32, masked": {"flash": {"wrong": True, "forward": 2.0, "backward": 1.0, "seconds": 1.0}}}
    findings = collect_findings(
        platform,
        facts,
        report(
            attention={"results": results, "chosen": {"float32, masked": "math"}},
            compile={"backend": "eager", "tried": {"inductor": "no compiler"}},
            unseen=True,
        ),
    )
    assert [finding.level for finding in findings] == ["wrong", "note", "wrong"]
    assert findings[0].what == "attention flash, float32, masked: off by 2 against float64"
    assert "aam takes math" in findings[0].mend
    assert "torch.compile with inductor: no compiler" in findings[1].what
    assert "torch sees none" in findings[2].what


def test_a_change_of_the_environment_is_a_finding(platform, facts):
    facts["environment"] = {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"}
    (finding,) = collect_findings(platform, facts, report())
    assert finding.level == "mended"
    assert "to no device at all" in finding.what
    assert "leave it out of your scripts" in finding.mend

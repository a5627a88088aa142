"""Findings about a machine and what to do about them, and the printed report; free of torch."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from aam.device.allocation import ELSEWHERE, ON_AMD
from aam.device.environment import AOTRITON, CACHES, describe_change, required_changes
from aam.device.platform import Facts, Platform

Level = Literal["wrong", "mended", "note"]

# The releases of PyTorch that the tests ran with: the oldest, and that of containers/lock/cpu.txt.
TESTED = ("2.7.1", "2.13")


class Finding(NamedTuple):
    """What is wrong, was mended or is worth a note, and what mends it."""

    level: Level
    what: str
    mend: str


def _environment_findings(platform: Platform, facts: Facts) -> list[Finding]:
    changes = required_changes(facts["environment"], [platform.architecture], facts["torch"].get("hip"))
    changes += [change for change in facts.get("mended", []) if change.name not in CACHES]
    return [
        Finding(
            "mended",
            f"{change.name}: {change.reason}",
            f"aam has it {describe_change(change)}; leave it out of your scripts",
        )
        for change in changes
    ]


def _attention_findings(attention: Facts) -> list[Finding]:
    findings = []
    for kind, results in attention["results"].items():
        for name, result in results.items():
            if result.get("wrong"):
                error = max(result["forward"], result["backward"])
                message = f"attention {name}, {kind}: off by {error:.3g} against float64"
                instead = attention["chosen"].get(kind, "none")
                mend = f"aam takes {instead}; upgrade PyTorch (2.7 or newer on ROCm)"
                findings.append(Finding("wrong", message, mend))
    return findings


def _operation_findings(report: Facts) -> list[Finding]:
    findings = []
    for name, probe in report["operations"].items():
        on_cpu = name in report["cpu_operations"]
        if probe["wrong"]:
            mend = "aam runs it on the CPU" if on_cpu else f"AAM_ROUTE={name}=cpu"
            findings.append(Finding("wrong", f"operation {name}: {probe['message']}", mend))
        elif on_cpu:
            findings.append(Finding("note", f"operation {name} runs on the CPU", f"AAM_ROUTE={name}=device"))
    return findings


def _version_findings(torch: Facts) -> list[Finding]:
    release, newest = ([int(part) for part in one.split(".")[:2]] for one in (torch["torch"], TESTED[1]))
    if release <= newest:
        return []
    what = f"PyTorch {torch['torch']} is newer than those that aam was tested with, {' to '.join(TESTED)}"
    return [Finding("note", what, f"pip install torch=={TESTED[1]}.0 where something fails")]


def _device_findings(platform: Platform, report: Facts) -> list[Finding]:
    """Return what is known to fail on this kind of device: the first tensor, parts of an APU, its free memory."""
    findings = []
    if report.get("first_tensor"):
        mend = ON_AMD if platform.vendor == "AMD" else ELSEWHERE
        findings.append(Finding("wrong", f"the first tensor on the GPU {report['first_tensor']}", mend))
    if platform.partition not in ("", "SPX"):
        message = f"each device is a part of an accelerator (mode {platform.partition})"
        findings.append(Finding("note", message, "start one rank for each device; SPX gives one rank all the memory"))
    free = report["memory"].get("free")
    if platform.unified and free is not None and not 0 < free <= platform.memory:
        message = f"free memory is reported as {free:,} bytes of {platform.memory:,}"
        mend = "APUs report it wrong (pytorch #145693); aam sizes batches by what a step takes, never by this"
        findings.append(Finding("note", message, mend))
    return findings


def collect_findings(platform: Platform, facts: Facts, report: Facts) -> list[Finding]:
    """Return what is wrong, was mended or is worth a note.

    Parameters
    ----------
    platform : Platform
    facts : dict
        Of `aam.device.platform.read_facts`, or of a recorded machine.
    report : dict
        What was measured on the machine.
    """
    findings = _environment_findings(platform, facts)
    findings += _version_findings(facts["torch"])
    findings += _device_findings(platform, report)
    findings += _attention_findings(report["attention"])
    findings += _operation_findings(report)
    findings += [
        Finding(
            "note", f"torch.compile with {name}: {message}", f"--compile-model takes {report['compile']['backend']}"
        )
        for name, message in report["compile"].get("tried", {}).items()
        if message != "right"
    ]
    if platform.vendor == "AMD" and platform.architecture.startswith("gfx11") and AOTRITON not in facts["environment"]:
        mend = f"{AOTRITON}=1 offers flash and memory-efficient attention; aam checks them before it uses them"
        findings.append(Finding("note", f"{AOTRITON} is unset", mend))
    if report["unseen"]:
        mend = "check the driver, the devices bound into the container (/dev/kfd, /dev/dri; --nv) and torch's build"
        findings.append(Finding("wrong", "a GPU is there or asked for, and torch sees none", mend))
    return findings


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _facts_table(report: Facts) -> Table:
    platform = report["platform"]
    table = Table(title=f"aam doctor: {platform['name']}", show_header=False, title_justify="left")
    rows = {
        **{name: value for name, value in platform.items() if name not in ("versions", "cpu_operations")},
        **platform["versions"],
        "tested with": f"torch {' to '.join(TESTED)} on CPU; not yet on a GPU",
        "devices": report["devices"],
        "runs on the CPU": report["cpu_operations"],
        **report["memory"],
        **{name: f"{rate / 1e9:.3g} G/s" for name, rate in report["rates"].items()},
        **report["environment"],
        **report["caches"],
        **report["slurm"],
        "container": report["container"]["path"],
        "compile": report["compile"].get("backend", "not tried"),
    }
    for name, value in rows.items():
        if value not in (None, [], ()):
            table.add_row(name, _format(value))
    return table


def _attention_table(attention: Facts) -> Table:
    table = Table("attention", "back end", "error", "backward", "ms", "", title="attention against float64")
    for column in table.columns:
        column.no_wrap = True
    for kind, results in attention["results"].items():
        for name, result in results.items():
            if "refused" in result:
                table.add_row(kind, name, "", "", "", "does not serve")
                continue
            status = "wrong" if result["wrong"] else "taken" if attention["chosen"].get(kind) == name else ""
            errors = [f"{result['forward']:.2g}", f"{result['backward']:.2g}"]
            milliseconds = f"{1e3 * result['seconds']:.3g}" if result["seconds"] else ""
            table.add_row(kind, name, *errors, milliseconds, status)
    return table


def print_report(report: Facts) -> None:
    """Print the report on one screen."""
    console = Console()
    console.print(_facts_table(report))
    console.print(_attention_table(report["attention"]))
    for finding in report["findings"]:
        console.print(f"{finding['level']}: {finding['what']}\n    {finding['mend']}", markup=False, highlight=False)
    if not any(finding["level"] == "wrong" for finding in report["findings"]):
        console.print("Nothing is wrong.")

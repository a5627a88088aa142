"""What is wrong with a machine, what mends it, and the printed report; free of torch."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from aam.runtime.environment import AOTRITON, CACHES, changes_of, describe_change
from aam.runtime.platform import Facts, Platform

Level = Literal["wrong", "mended", "note"]


class Finding(NamedTuple):
    """What is wrong, was mended or is worth knowing, and what mends it."""

    level: Level
    what: str
    mend: str


def findings_of(platform: Platform, facts: Facts, report: Facts) -> list[Finding]:
    """What is wrong, was mended or is worth knowing, from the platform, its facts and what was measured on it."""
    environment, hip = facts["environment"], facts["torch"].get("hip")
    changes = changes_of(environment, [platform.architecture], hip)
    changes += [change for change in facts.get("mended", []) if change.name not in CACHES]
    found = [
        Finding("mended", f"{c.name}: {c.why}", f"aam has it {describe_change(c)}; leave it out of your scripts")
        for c in changes
    ]
    for family, results in report["attention"]["results"].items():
        for name, result in results.items():
            if result.get("wrong"):
                error = max(result["forward"], result["backward"])
                instead = report["attention"]["chosen"].get(family, "none")
                said = f"attention {name}, {family}: off by {error:.3g} against float64"
                found.append(Finding("wrong", said, f"aam takes {instead}; upgrade PyTorch (2.7 or newer on ROCm)"))
    for name, error in report["operations"].items():
        if error["wrong"]:
            mend = "aam runs it on the CPU" if name in report["elsewhere"] else f"AAM_OPERATIONS={name}=cpu"
            found.append(Finding("wrong", f"operation {name}: {error['said']}", mend))
        elif name in report["elsewhere"]:
            found.append(Finding("note", f"operation {name} runs on the CPU", f"AAM_OPERATIONS={name}=device"))
    tried = report["compile"].get("tried", {})
    found += [
        Finding("note", f"torch.compile with {name}: {said}", f"--compile-model takes {report['compile']['backend']}")
        for name, said in tried.items()
        if said != "right"
    ]
    if platform.vendor == "AMD" and platform.architecture.startswith("gfx11") and AOTRITON not in environment:
        mend = f"{AOTRITON}=1 offers flash and memory-efficient attention, to be judged by the gates"
        found.append(Finding("note", f"{AOTRITON} is unset", mend))
    if report["unseen"]:
        mend = "check the driver, the devices bound into the container (/dev/kfd, /dev/dri; --nv) and torch's build"
        found.append(Finding("wrong", "a GPU is there or asked for, and torch sees none", mend))
    return found


def _printed(value: Any) -> str:
    """A value of the report for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def show(report: Facts) -> None:
    """Print the report on one screen."""
    console, platform = Console(), report["platform"]
    table = Table(title=f"aam doctor: {platform['name']}", show_header=False, title_justify="left")
    facts = {k: v for k, v in platform.items() if k != "versions"} | {
        k: v for k, v in platform["versions"].items() if v
    }
    facts |= {"devices": report["devices"], "runs on the CPU": report["elsewhere"]}
    facts |= report["memory"]
    facts |= {name: f"{rate / 1e9:.3g} G/s" for name, rate in report["rates"].items()}
    facts |= {**report["environment"], **report["caches"], **report["slurm"], "container": report["container"]["path"]}
    facts["compile"] = report["compile"].get("backend", "not tried")
    for name, value in facts.items():
        if value not in (None, [], ()):
            table.add_row(name, _printed(value))
    console.print(table)
    table = Table("attention", "back end", "error", "backward", "ms", "", title="attention against float64")
    for column in table.columns:
        column.no_wrap = True
    for kind, found in report["attention"]["results"].items():
        for name, result in found.items():
            if "refused" in result:
                table.add_row(kind, name, "", "", "", "does not serve")
                continue
            said = "wrong" if result["wrong"] else "taken" if report["attention"]["chosen"].get(kind) == name else ""
            errors = [f"{result[each]:.2g}" for each in ("forward", "backward")]
            table.add_row(kind, name, *errors, f"{1e3 * result['seconds']:.3g}" if result["seconds"] else "", said)
    console.print(table)
    for finding in report["findings"]:
        console.print(f"{finding['level']}: {finding['what']}\n    {finding['mend']}", markup=False, highlight=False)
    if not any(finding["level"] == "wrong" for finding in report["findings"]):
        console.print("Nothing is wrong.")

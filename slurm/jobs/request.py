"""What a user can ask for: the kinds of jobs, and one request for a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from containers.lib.files import ROOT


@dataclass(frozen=True)
class Kind:
    """One kind of job."""

    title: str
    command: str = ""  # of aam; empty: the template runs several
    example: str = ""  # variables of make
    needs: tuple[str, ...] = ("--table",)
    nodes: int = 1
    devices: int = 0  # tasks on a node; 0: as many as a node has devices
    minutes: int = 0  # time limit of a job without --time; 0: that of the site
    uses_gpu: bool = True
    template: str = "run.sh"

    @property
    def resumes(self) -> bool:
        """Whether a run goes on after an interruption."""
        return self.command in ("pretrain", "train")


STUDY = "TABLE=table.biom TREE=tree.nwk"
LABELS = "METADATA=metadata.tsv COLUMN=age MODEL=pre/model"
SINGLE: dict[str, Any] = {"devices": 1, "minutes": 60}
ON_CPU: dict[str, Any] = {**SINGLE, "uses_gpu": False}
TRANSPORT = "transport and bandwidth between the devices"
KINDS = {
    "pretrain_single": Kind("pretraining on one device", "pretrain", STUDY, devices=1),
    "pretrain_node": Kind("pretraining on a node", "pretrain", STUDY),
    "pretrain_multi": Kind("pretraining on several nodes", "pretrain", f"{STUDY} NODES=2", nodes=2),
    "train": Kind(
        "training",
        "train",
        f"TABLE=table.biom {LABELS}",
        ("--table", "--metadata", "--metadata-column"),
    ),
    "predict": Kind(
        "predicting samples",
        "predict",
        "TABLE=new.biom MODEL=tune/model",
        ("--table", "--model"),
        **SINGLE,
    ),
    "unifrac": Kind("a UniFrac matrix", "unifrac", STUDY, ("--table", "--tree"), **SINGLE),
    "doctor": Kind(TRANSPORT, "doctor", "NODES=2", (), nodes=2, minutes=15),
    "stage": Kind("copying inputs to shared storage", "", STUDY, (), template="stage.sh", **ON_CPU),
    "ci_rocm": Kind(
        "tests, doctor and profile on a GPU node", needs=(), template="ci_rocm.sh", **SINGLE
    ),
    "profile_rocm": Kind(
        "profiles on a GPU node", needs=(), devices=1, minutes=30, template="profile_rocm.sh"
    ),
}


@dataclass(frozen=True)
class Request:
    """One request: the command line without the site.

    Parameters
    ----------
    words
        What follows ``--``: options of aam.
    data
        The folder of relative inputs.
    check
        Whether files and free space are checked; examples name files that do not exist.
    seeds
        One run for each, which writes ``seed-N`` in the output of the job; the tasks share them.
    after
        A job that writes the models or encoders that this one reads; it starts when that succeeds.
    chain
        Jobs of one run, one after the other; more than one do not requeue themselves.
    dry_run
        The script is only shown: missing files, image and storage are warnings of the job, and an
        input that is needed and not given is named by a placeholder.
    allow_cpu
        Whether the job may compute on the CPU of a site with GPUs.
    inline
        Whether the script contains slurm/lib.sh instead of reading it.
    """

    job: str
    words: tuple[str, ...] = ()
    data: Path = field(default_factory=Path.cwd)
    nodes: int | None = None
    devices: int | None = None
    time: str = ""
    written_by: str = ""
    seeds: tuple[str, ...] = ()
    after: str = ""
    user: str = ""
    python: str = ""
    root: Path = ROOT
    check: bool = True
    chain: int = 1
    dry_run: bool = False
    allow_cpu: bool = False
    inline: bool = False

#!/bin/bash
# aam ci_rocm: tests, doctor and benchmark on a GPU node, 1 node of a SLURM site with 1 task
#
# written by  slurm/generate examples: yours names your files, your checkout and its commit
# writes      /shared/researcher/ci
# log         /shared/researcher/ci/slurm
# image       /shared/researcher/aam/containers/aam-cuda.sif
# commit      0000000000000000000000000000000000000000
# time        12:00:00
# exit        0 finished, 85 checkpointed, submit it again, 2 bad input, 1 failed
#SBATCH --job-name=ci_rocm
#SBATCH --partition=batch
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/researcher/ci/slurm
#SBATCH --output=/shared/researcher/ci/slurm/ci_rocm-%j.log
# Each part is run whatever became of the one before; the exit status is 1 when any failed.
set -uo pipefail

AAM=/shared/researcher/aam
PYTHON=python3
AAM_VAST=/shared/researcher
AAM_NVME='/local/researcher/'"$SLURM_JOB_ID"
IMAGE=/shared/researcher/aam/containers/aam-cuda.sif
KEPT=/shared/researcher/ci   # JUnit, the self-test's and the doctor's JSON, metrics, profile, benchmark
export AAM_VAST AAM_NVME
WORK=$AAM_NVME/ci
failed=()

say() { printf '%(%F %T)T %s\n' -1 "$*"; }
fail() { local status=$1; shift; say "failed: $*" >&2; exit "$status"; }
part() {   # part NAME COMMAND...: run it, and keep what it says
    local name=$1 began=$SECONDS; shift
    say "$name: begins"
    if "$@" > >(tee "$KEPT/$name.log") 2>&1; then say "$name: passed in $((SECONDS - began)) s"
    else failed+=("$name"); say "$name: FAILED after $((SECONDS - began)) s"; fi
}
inside() { "$PYTHON" "$AAM/containers/run" --engine apptainer --nv "$IMAGE" aam "$@"; }

{ mkdir -p "$KEPT" "$WORK" && cd "$WORK"; } || fail 1 "cannot make $KEPT and $WORK"
[ "$IMAGE" != "$AAM/containers/aam-rocm.sif" ] || part image make -C "$AAM" container-rocm "PYTHON=$PYTHON"
part tests "$PYTHON" "$AAM/containers/session.py" rocm --image "$IMAGE"
cp -r "$AAM/results/rocm/." "$KEPT/"
part doctor inside doctor --output doctor.json
part study inside simulate --output-dir study --samples 300
part pretrain inside pretrain --table study/table.biom --tree study/tree.nwk --epochs 3 --output-dir pre
part profile inside profile step --table study/table.biom --tree study/tree.nwk --output-dir profile
part bench inside bench --output bench.json
cp -r profile doctor.json bench.json pre/metrics.jsonl pre/run.json "$KEPT/"
say "kept in $KEPT; failed: ${failed[*]:-none}"
(( ! ${#failed[@]} ))

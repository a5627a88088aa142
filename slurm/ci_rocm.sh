#!/bin/bash -l
# aam ci_rocm: tests, doctor and benchmark on a GPU node, 1 node of SDSC Cosmos with 1 task
#
# written by  slurm/generate examples: yours names your files, your checkout and its commit
# writes      /cosmos/vast/scratch/researcher/ci
# log         /cosmos/vast/scratch/researcher/ci/slurm
# first       mkdir -p /cosmos/vast/scratch/researcher/ci/slurm  (--submit makes it; sbatch does not)
# image       /cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
# commit      0000000000000000000000000000000000000000
# time        12:00:00
# exit        0 finished, 85 checkpointed: submit again, 2 bad input, 1 failed
#SBATCH --job-name=ci_rocm
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=48
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/cosmos/vast/scratch/researcher/ci/slurm
#SBATCH --output=/cosmos/vast/scratch/researcher/ci/slurm/ci_rocm-%j.log
# Every part runs, even after a part that failed; the exit status is 1 when any failed.
set -uo pipefail

AAM=/cosmos/vast/scratch/researcher/aam
PYTHON=python3
AAM_SHARED=/cosmos/vast/scratch/researcher
AAM_LOCAL='/scratch/researcher/job_'"$SLURM_JOB_ID"
IMAGE=/cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
RESULTS=/cosmos/vast/scratch/researcher/ci   # JUnit, the JSON of self-test and doctor, metrics, profile, benchmark
export AAM_SHARED AAM_LOCAL
WORK=$AAM_LOCAL/ci
failed=()

log() { printf '%(%F %T)T %s\n' -1 "$*"; }
fail() { local status=$1; shift; log "failed: $*" >&2; exit "$status"; }
run_part() {   # run_part NAME COMMAND...: run a command and write its output to NAME.log too
    local name=$1 start=$SECONDS; shift
    log "$name: begins"
    if "$@" > >(tee "$RESULTS/$name.log") 2>&1; then log "$name: passed in $((SECONDS - start)) s"
    else failed+=("$name"); log "$name: FAILED after $((SECONDS - start)) s"; fi
}
aam() { "$PYTHON" "$AAM/containers/run" --engine singularity "$IMAGE" aam "$@"; }

module purge || fail 1 'module purge'
module use /opt/modulefiles || fail 1 'module use /opt/modulefiles'
module load singularitypro/4.1.3 || fail 1 'module load singularitypro/4.1.3'
{ mkdir -p "$RESULTS" "$WORK" && cd "$WORK"; } || fail 1 "cannot make $RESULTS and $WORK"
[ "$IMAGE" != "$AAM/containers/aam-rocm.sif" ] || run_part image make -C "$AAM" container-rocm "PYTHON=$PYTHON"
run_part tests "$PYTHON" "$AAM/containers/test" rocm --image "$IMAGE"
cp -r "$AAM/results/rocm/." "$RESULTS/"
run_part doctor aam doctor --output doctor.json
run_part study python -m aam.data.simulate study --samples 300
run_part pretrain aam pretrain --table study/table.biom --tree study/tree.nwk --epochs 3 --output-dir pre
run_part profile aam profile step --table study/table.biom --tree study/tree.nwk --output-dir profile
run_part bench aam bench --output bench.json
cp -r profile doctor.json bench.json pre/metrics.jsonl pre/run.json "$RESULTS/"
log "results: $RESULTS; failed: ${failed[*]:-none}"
(( ! ${#failed[@]} ))

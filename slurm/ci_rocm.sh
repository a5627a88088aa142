#!/bin/bash -l
# aam ci_rocm: tests, doctor and profile on a GPU node, 1 node of SDSC Cosmos with 1 task on one device
#
# written by  slurm/generate examples: yours names your files, your checkout and its commit
# writes      /cosmos/vast/scratch/researcher/ci
# first       mkdir -p /cosmos/vast/scratch/researcher/ci/slurm  (--submit makes it; sbatch does not)
# image       /cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
# commit      0000000000000000000000000000000000000000
# site        aam has not run there yet
# lib.sh      sha256 b56bfa25a2ff9bc695208c2b19a4b5b45efebb1211b00bd5f57df68d2ebd398a
# exit        0 finished, 85 checkpointed: submit again, 2 bad input, 1 failed
#SBATCH --job-name=ci_rocm
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=48
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=01:00:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/cosmos/vast/scratch/researcher/ci/slurm
#SBATCH --output=/cosmos/vast/scratch/researcher/ci/slurm/ci_rocm-%j.log
# shellcheck disable=SC2034,SC1090,SC2317  # the functions read the settings
# Every part runs, even after a part that failed; the exit status is 1 when any failed.
set -uo pipefail

AAM=/cosmos/vast/scratch/researcher/aam
PYTHON=python3
AAM_SHARED=/cosmos/vast/scratch/researcher
AAM_LOCAL='/scratch/researcher/job_'"$SLURM_JOB_ID"
export AAM_SHARED AAM_LOCAL
WORK=$AAM_LOCAL/aam   # on each node: in/ holds the inputs, run/ what the command writes
IMAGE=/cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
IMAGE_FILES=()
IMAGE_SHA256=()
OUT=/cosmos/vast/scratch/researcher/ci
ENTER=(--engine singularity)
SOURCES=()

LIB_SHA256=b56bfa25a2ff9bc695208c2b19a4b5b45efebb1211b00bd5f57df68d2ebd398a
for LIB in "$OUT/slurm/lib-${LIB_SHA256::12}.sh" "$AAM/slurm/lib.sh" ''; do
    [ "$(sha256sum 2>/dev/null <"$LIB")" != "$LIB_SHA256  -" ] || break
done
[ -n "$LIB" ] || { echo "slurm/lib.sh has changed: write this script again" >&2; exit 1; }
. "$LIB"

failed=()
run_part() {   # run_part NAME COMMAND...: run a command and write its output to NAME.log too
    local name=$1 start=$SECONDS; shift
    log "$name: begins"
    if "$@" > >(tee "$OUT/$name.log") 2>&1; then log "$name: passed in $((SECONDS - start)) s"
    else failed+=("$name"); log "$name: FAILED after $((SECONDS - start)) s"; fi
}

module purge || fail 1 'module purge'
module use /opt/modulefiles || fail 1 'module use /opt/modulefiles'
module load singularitypro/4.1.3 || fail 1 'module load singularitypro/4.1.3'
module load cray-python/3.11.7 || fail 1 'module load cray-python/3.11.7'
{ mkdir -p "$OUT" "$WORK" && cd "$WORK"; } || fail 1 "cannot make $OUT and $WORK"
[ "$IMAGE" != "$AAM/containers/aam-rocm.sif" ] || run_part image make -C "$AAM" container-rocm "PYTHON=$PYTHON"
run_part tests "$PYTHON" "$AAM/containers/test" rocm --image "$IMAGE"
cp -r "$AAM/results/rocm/." "$OUT/"
run_part doctor in_image aam doctor --output doctor.json
run_part study in_image python -m aam.data.simulate study --samples 300
run_part pretrain in_image aam pretrain --table study/table.biom --tree study/tree.nwk --epochs 3 --output-dir pre
run_part profile in_image aam profile --table study/table.biom --tree study/tree.nwk --output-dir profile
cp -r profile doctor.json pre/metrics.jsonl pre/run.json "$OUT/"
log "results: $OUT; failed: ${failed[*]:-none}"
(( ! ${#failed[@]} ))

#!/bin/bash -l
# aam stage: copying inputs to shared storage, 1 node of SDSC Cosmos with 1 task on its CPUs, no GPU is used
#
# written by  slurm/generate examples: yours names your files, your checkout and its commit
# reads       /cosmos/vast/scratch/researcher/study/table.biom
# reads       /cosmos/vast/scratch/researcher/study/tree.nwk
# reads       /cosmos/vast/scratch/researcher/study/metadata.tsv
# writes      /cosmos/vast/scratch/researcher/study
# first       mkdir -p /cosmos/vast/scratch/researcher/study/slurm  (--submit makes it; sbatch does not)
# image       /cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
# commit      0000000000000000000000000000000000000000
# site        aam has not run there yet
# lib.sh      sha256 b56bfa25a2ff9bc695208c2b19a4b5b45efebb1211b00bd5f57df68d2ebd398a
# exit        0 finished, 85 checkpointed: submit again, 2 bad input, 1 failed
#SBATCH --job-name=stage
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=192
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=01:00:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/cosmos/vast/scratch/researcher/study/slurm
#SBATCH --output=/cosmos/vast/scratch/researcher/study/slurm/stage-%j.log
# shellcheck disable=SC2034,SC1090,SC2317  # the functions read the settings
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
OUT=/cosmos/vast/scratch/researcher/study
ENTER=(--engine singularity)
SOURCES=(
    /cosmos/vast/scratch/researcher/study/table.biom
    /cosmos/vast/scratch/researcher/study/tree.nwk
    /cosmos/vast/scratch/researcher/study/metadata.tsv
)

LIB_SHA256=b56bfa25a2ff9bc695208c2b19a4b5b45efebb1211b00bd5f57df68d2ebd398a
for LIB in "$OUT/slurm/lib-${LIB_SHA256::12}.sh" "$AAM/slurm/lib.sh" ''; do
    [ "$(sha256sum 2>/dev/null <"$LIB")" != "$LIB_SHA256  -" ] || break
done
[ -n "$LIB" ] || { echo "slurm/lib.sh has changed: write this script again" >&2; exit 1; }
. "$LIB"

module purge || fail 1 'module purge'
module use /opt/modulefiles || fail 1 'module use /opt/modulefiles'
module load singularitypro/4.1.3 || fail 1 'module load singularitypro/4.1.3'
module load cray-python/3.11.7 || fail 1 'module load cray-python/3.11.7'
{ mkdir -p "$OUT" && check_space "$OUT" 0 "${SOURCES[@]}"; } || fail 1 "stage: see above; nothing was copied"
for i in "${!SOURCES[@]}"; do
    copy_in "${SOURCES[i]}" "$OUT/${SOURCES[i]##*/}" || fail 1 "stage: ${SOURCES[i]}; earlier copies stay"
done
log "stage: $OUT holds ${#SOURCES[@]} inputs"

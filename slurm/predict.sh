#!/bin/bash -l
# aam predict: predicting samples, 1 node of SDSC Cosmos with 1 task on one device
#
# written by  slurm/generate examples: yours names your files, your checkout and its commit
# reads       /cosmos/vast/scratch/researcher/study/new.biom
# reads       /cosmos/vast/scratch/researcher/tune/model
# writes      /cosmos/vast/scratch/researcher/predictions.tsv
# first       mkdir -p /cosmos/vast/scratch/researcher/slurm  (--submit makes it; sbatch does not)
# image       /cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
# commit      0000000000000000000000000000000000000000
# site        aam has not run there yet
# lib.sh      sha256 b56bfa25a2ff9bc695208c2b19a4b5b45efebb1211b00bd5f57df68d2ebd398a
# time        01:00:00; 360 s before its end: checkpoint, copy to shared storage, requeue
#             (360 s: SLURM's delay, a trial of the device, three times the 0 B of a checkpoint
#             at 200 MB/s, at most half of the time)
# exit        0 finished, 85 checkpointed: submit again, 2 bad input, 1 failed
#SBATCH --job-name=predict
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=48
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR2@360
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/cosmos/vast/scratch/researcher/slurm
#SBATCH --output=/cosmos/vast/scratch/researcher/slurm/predict-%j.log
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
OUT=/cosmos/vast/scratch/researcher
ENTER=(--engine singularity)
SOURCES=(
    /cosmos/vast/scratch/researcher/study/new.biom
    /cosmos/vast/scratch/researcher/tune/model
)
TARGETS=(
    table/new.biom
    model/model
)
FILE=predictions.tsv
COMMAND=(
    aam predict
    --table in/table/new.biom
    --model in/model/model
    --threads 24
    --num-workers 4
    --device hip
    --output run/predictions.tsv
)
MASKS=  # the CPUs of each task: those next to its device
SRUN=(
    srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=48
    --kill-on-bad-exit=0 --wait=120 --export=ALL
)
INSIDE=python
DEVICE=hip
DEVICES=4  # that torch must see on a node
EACH=rank
VALUES=()
OPTION=()
INTERFACES=hsn
RESERVE=1073741824  # bytes of a node's disk for what the job writes
COPY_SECONDS=300  # between copies of new checkpoints
MOST_REQUEUES=20
CLEAN=

LIB_SHA256=b56bfa25a2ff9bc695208c2b19a4b5b45efebb1211b00bd5f57df68d2ebd398a
for LIB in "$OUT/slurm/lib-${LIB_SHA256::12}.sh" "$AAM/slurm/lib.sh" ''; do
    [ "$(sha256sum 2>/dev/null <"$LIB")" != "$LIB_SHA256  -" ] || break
done
[ -n "$LIB" ] || { echo "slurm/lib.sh has changed: write this script again" >&2; exit 1; }
. "$LIB"

begin
module purge || fail 1 'module purge'
module use /opt/modulefiles || fail 1 'module use /opt/modulefiles'
module load singularitypro/4.1.3 || fail 1 'module load singularitypro/4.1.3'
module load cray-python/3.11.7 || fail 1 'module load cray-python/3.11.7'
run_job

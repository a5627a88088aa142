#!/bin/bash
# aam pretrain_multi: pretraining on several nodes, 2 nodes of a SLURM site with 4 tasks, one for each device each
#
# written by  slurm/generate examples: yours names your files, your checkout and its commit
# reads       /shared/researcher/study/table.biom
# reads       /shared/researcher/study/tree.nwk
# writes      /shared/researcher/pre
# first       mkdir -p /shared/researcher/pre/slurm  (--submit makes it; sbatch does not)
# image       /shared/researcher/aam/containers/aam-cuda.sif
# commit      0000000000000000000000000000000000000000
# site        aam has not run there yet
# lib.sh      sha256 b56bfa25a2ff9bc695208c2b19a4b5b45efebb1211b00bd5f57df68d2ebd398a
# time        12:00:00; 420 s before its end: checkpoint, copy to shared storage, requeue
#             (420 s: SLURM's delay, a trial of the device, three times the 45.7 MB of a checkpoint
#             at 200 MB/s, at most half of the time)
# exit        0 finished, 85 checkpointed: submit again, 2 bad input, 1 failed
#SBATCH --job-name=pretrain_multi
#SBATCH --partition=batch
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR2@420
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/researcher/pre/slurm
#SBATCH --output=/shared/researcher/pre/slurm/pretrain_multi-%j.log
# shellcheck disable=SC2034,SC1090,SC2317  # the functions read the settings
set -uo pipefail

AAM=/shared/researcher/aam
PYTHON=python3
AAM_SHARED=/shared/researcher
AAM_LOCAL='/local/researcher/'"$SLURM_JOB_ID"
export AAM_SHARED AAM_LOCAL
WORK=$AAM_LOCAL/aam   # on each node: in/ holds the inputs, run/ what the command writes
IMAGE=/shared/researcher/aam/containers/aam-cuda.sif
IMAGE_FILES=()
IMAGE_SHA256=()
OUT=/shared/researcher/pre
ENTER=(--engine apptainer --nv)
SOURCES=(
    /shared/researcher/study/table.biom
    /shared/researcher/study/tree.nwk
)
TARGETS=(
    table/table.biom
    tree/tree.nwk
)
FILE=''
COMMAND=(
    aam pretrain
    --table in/table/table.biom
    --tree in/tree/tree.nwk
    --threads 8
    --num-workers 2
    --device cuda
    --distributed
    --resume-from auto
    --output-dir run
)
MASKS=  # the CPUs of each task: those next to its device
SRUN=(
    srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=8
    --kill-on-bad-exit=0 --wait=120 --export=ALL
)
INSIDE=python
DEVICE=cuda
DEVICES=4  # that torch must see on a node
EACH=rank
VALUES=()
OPTION=()
INTERFACES=''
RESERVE=1439432704  # bytes of a node's disk for what the job writes
COPY_SECONDS=300  # between copies of new checkpoints
MOST_REQUEUES=20
CLEAN=yes

LIB_SHA256=b56bfa25a2ff9bc695208c2b19a4b5b45efebb1211b00bd5f57df68d2ebd398a
for LIB in "$OUT/slurm/lib-${LIB_SHA256::12}.sh" "$AAM/slurm/lib.sh" ''; do
    [ "$(sha256sum 2>/dev/null <"$LIB")" != "$LIB_SHA256  -" ] || break
done
[ -n "$LIB" ] || { echo "slurm/lib.sh has changed: write this script again" >&2; exit 1; }
. "$LIB"

begin
run_job

#!/bin/bash -l
# aam profile_rocm: profiles on a GPU node, 1 node of SDSC Cosmos with 1 task on one device
#
# written by  slurm/generate examples: yours names your files, your checkout and its commit
# writes      /cosmos/vast/scratch/researcher/profile
# first       mkdir -p /cosmos/vast/scratch/researcher/profile/slurm  (--submit makes it; sbatch does not)
# image       /cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
# commit      0000000000000000000000000000000000000000
# site        aam has not run there yet
# lib.sh      sha256 b56bfa25a2ff9bc695208c2b19a4b5b45efebb1211b00bd5f57df68d2ebd398a
# exit        0 finished, 85 checkpointed: submit again, 2 bad input, 1 failed
#SBATCH --job-name=profile_rocm
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=48
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=00:30:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/cosmos/vast/scratch/researcher/profile/slurm
#SBATCH --output=/cosmos/vast/scratch/researcher/profile/slurm/profile_rocm-%j.log
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
OUT=/cosmos/vast/scratch/researcher/profile
ENTER=(--engine singularity)
SOURCES=()
ROCM=/opt/rocm-6.3.0   # the node's ROCm, for its rocprofv3; empty: only that of the image, if any

LIB_SHA256=b56bfa25a2ff9bc695208c2b19a4b5b45efebb1211b00bd5f57df68d2ebd398a
for LIB in "$OUT/slurm/lib-${LIB_SHA256::12}.sh" "$AAM/slurm/lib.sh" ''; do
    [ "$(sha256sum 2>/dev/null <"$LIB")" != "$LIB_SHA256  -" ] || break
done
[ -n "$LIB" ] || { echo "slurm/lib.sh has changed: write this script again" >&2; exit 1; }
. "$LIB"

aam() { in_image aam "$@" || fail 1 "aam $1: see above"; }
study=(--table study/table.biom --tree study/tree.nwk)
traced() {   # rocprofv3 around a profile: of the image, or of the node, bound into the image
    local program=rocprofv3 stats
    in_image sh -c 'command -v rocprofv3' >/dev/null ||
        { program=$ROCM/bin/rocprofv3; [ -n "$ROCM" ] && [ -x "$program" ] && ENTER+=(--bind "$ROCM"); } ||
        { log "rocprofv3 is neither in the image nor on this node (${ROCM:-rocm of the site is not set}): no kernels are traced"; return; }
    in_image "$program" --kernel-trace --stats --output-format csv --output-directory traces --output-file step \
        -- aam profile "${study[@]}" --output-dir traced || log "rocprofv3: see above"
    stats=$(find traces -name '*kernel_stats.csv' 2>/dev/null | sort | head -n 1)
    [ -n "$stats" ] || { log "rocprofv3 wrote no kernel_stats.csv below $WORK/traces: no kernels are listed"; return; }
    cp -r traces "$OUT/rocprof"
    log "rocprofv3 before ROCm 7.2.2 drops kernels of graphs: what is captured may be missing in this list"
    "$PYTHON" "$AAM/benchmarks/kernels.py" traces >"$OUT/kernels.txt" || log "the list of kernels: see above"
}

module purge || fail 1 'module purge'
module use /opt/modulefiles || fail 1 'module use /opt/modulefiles'
module load singularitypro/4.1.3 || fail 1 'module load singularitypro/4.1.3'
module load cray-python/3.11.7 || fail 1 'module load cray-python/3.11.7'
check_python
check_image
{ mkdir -p "$OUT" "$WORK" && cd "$WORK"; } || fail 1 "cannot make $OUT and $WORK"
aam doctor --output "$OUT/doctor.json"
in_image python -m aam.data.simulate study --samples 300 || fail 1 "the simulated study: see above"
aam pretrain "${study[@]}" --epochs 2 --output-dir warm-up   # compiles and tunes the kernels
aam profile "${study[@]}" --memory-profile --output-dir "$OUT/memory"
# First without a tracer, so that the speed is right, and kept whatever the tracer does.
aam profile "${study[@]}" --output-dir "$OUT/step"
traced
log "results: $OUT"

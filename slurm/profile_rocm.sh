#!/bin/bash -l
# aam profile_rocm: profiles on a GPU node, 1 node of SDSC Cosmos with 1 task
#
# written by  slurm/generate examples: yours names your files, your checkout and its commit
# writes      /cosmos/vast/scratch/researcher/profile
# log         /cosmos/vast/scratch/researcher/profile/slurm
# first       mkdir -p /cosmos/vast/scratch/researcher/profile/slurm  (--submit makes it; sbatch does not)
# image       /cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
# commit      0000000000000000000000000000000000000000
# time        12:00:00
# exit        0 finished, 85 checkpointed: submit again, 2 bad input, 1 failed
#SBATCH --job-name=profile_rocm
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=48
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/cosmos/vast/scratch/researcher/profile/slurm
#SBATCH --output=/cosmos/vast/scratch/researcher/profile/slurm/profile_rocm-%j.log
set -uo pipefail

AAM=/cosmos/vast/scratch/researcher/aam
PYTHON=python3
AAM_SHARED=/cosmos/vast/scratch/researcher
AAM_LOCAL='/scratch/researcher/job_'"$SLURM_JOB_ID"
IMAGE=/cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
RESULTS=/cosmos/vast/scratch/researcher/profile   # the doctor's report, the benchmark, the profiles and the kernels of rocprofv3
export AAM_SHARED AAM_LOCAL
WORK=$AAM_LOCAL/profile

log() { printf '%(%F %T)T %s\n' -1 "$*"; }
fail() { local status=$1; shift; log "failed: $*" >&2; exit "$status"; }
aam=(aam)
in_image() { "$PYTHON" "$AAM/containers/run" --engine singularity "$IMAGE" "$@"; }

module purge || fail 1 'module purge'
module use /opt/modulefiles || fail 1 'module use /opt/modulefiles'
module load singularitypro/4.1.3 || fail 1 'module load singularitypro/4.1.3'
{ mkdir -p "$RESULTS" "$WORK" && cd "$WORK"; } || fail 1 "cannot make $RESULTS and $WORK"
in_image "${aam[@]}" doctor --output "$RESULTS/doctor.json" || fail 1 "doctor: see above"
in_image "${aam[@]}" bench --output "$RESULTS/bench.json" || fail 1 "bench: see above"
in_image python -m aam.data.simulate study --samples 300 || fail 1 "simulate: see above"
pretrain=("${aam[@]}" pretrain --table study/table.biom --tree study/tree.nwk --epochs 2 --output-dir)
in_image "${pretrain[@]}" warm-up || fail 1 "pretrain: see above"   # compiles and tunes the kernels
for what in step memory; do
    in_image "${aam[@]}" profile "$what" --table study/table.biom --tree study/tree.nwk --output-dir "$RESULTS/$what" ||
        fail 1 "profile $what: see above"
done
if in_image sh -c 'command -v rocprofv3' >/dev/null; then
    in_image rocprofv3 --kernel-trace --stats --output-directory "$RESULTS/rocprof" -- "${pretrain[@]}" traced ||
        fail 1 "rocprofv3: see above"
else
    log "rocprofv3 is not in the image: no kernels are traced"
fi
log "results: $RESULTS"

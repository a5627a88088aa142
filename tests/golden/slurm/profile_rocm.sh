#!/bin/bash
# aam profile_rocm: profiles on a GPU node, 1 node of a SLURM site with 1 task
#
# written by  slurm/generate examples: yours names your files, your checkout and its commit
# writes      /shared/researcher/profile
# log         /shared/researcher/profile/slurm
# image       /shared/researcher/aam/containers/aam-cuda.sif
# commit      0000000000000000000000000000000000000000
# time        12:00:00
# exit        0 finished, 85 checkpointed, submit it again, 2 bad input, 1 failed
#SBATCH --job-name=profile_rocm
#SBATCH --partition=batch
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/researcher/profile/slurm
#SBATCH --output=/shared/researcher/profile/slurm/profile_rocm-%j.log
set -uo pipefail

AAM=/shared/researcher/aam
PYTHON=python3
AAM_VAST=/shared/researcher
AAM_NVME='/local/researcher/'"$SLURM_JOB_ID"
IMAGE=/shared/researcher/aam/containers/aam-cuda.sif
KEPT=/shared/researcher/profile   # the doctor's report, the benchmark, and the kernels that rocprofv3 has seen
export AAM_VAST AAM_NVME
WORK=$AAM_NVME/profile

say() { printf '%(%F %T)T %s\n' -1 "$*"; }
fail() { local status=$1; shift; say "failed: $*" >&2; exit "$status"; }
aam=(aam)
inside() { "$PYTHON" "$AAM/containers/run" --engine apptainer --nv "$IMAGE" "$@"; }

{ mkdir -p "$KEPT" "$WORK" && cd "$WORK"; } || fail 1 "cannot make $KEPT and $WORK"
inside "${aam[@]}" doctor --output "$KEPT/doctor.json" || fail 1 "doctor: see above"
inside "${aam[@]}" bench --output "$KEPT/bench.json" || fail 1 "bench: see above"
inside "${aam[@]}" simulate --output-dir study --samples 300 || fail 1 "simulate: see above"
run=("${aam[@]}" pretrain --table study/table.biom --tree study/tree.nwk --epochs 2 --output-dir)
inside "${run[@]}" warm || fail 1 "pretrain: see above"   # kernels are compiled and tuned by a first run
for what in step memory; do
    inside "${aam[@]}" profile "$what" --table study/table.biom --tree study/tree.nwk --output-dir "$KEPT/$what" ||
        fail 1 "profile $what: see above"
done
if inside sh -c 'command -v rocprofv3' >/dev/null; then
    inside rocprofv3 --kernel-trace --stats --output-directory "$KEPT/rocprof" -- "${run[@]}" traced ||
        fail 1 "rocprofv3: see above"
else
    say "rocprofv3 is not in the image: no kernels are traced"
fi
say "kept in $KEPT"

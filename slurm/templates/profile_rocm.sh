{{ HEADER }}
{{ SBATCH }}
set -uo pipefail

{{ SETTINGS }}
IMAGE={{ IMAGE }}
RESULTS={{ OUT }}   # the doctor's report, the benchmark, the profiles and the kernels of rocprofv3
export AAM_SHARED AAM_LOCAL
WORK=$AAM_LOCAL/profile

log() { printf '%(%F %T)T %s\n' -1 "$*"; }
fail() { local status=$1; shift; log "failed: $*" >&2; exit "$status"; }
aam=({{ PROGRAM }})
in_image() { "$PYTHON" "$AAM/containers/run" {{ ENTER }} "$IMAGE" "$@"; }

{{ SETUP }}
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

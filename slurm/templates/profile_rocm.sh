{{ HEADER }}
{{ SBATCH }}
set -uo pipefail

{{ FACTS }}
IMAGE={{ IMAGE }}
KEPT={{ OUT }}   # the doctor's report, the benchmark, and the kernels that rocprofv3 has seen
export AAM_VAST AAM_NVME
WORK=$AAM_NVME/profile

say() { printf '%(%F %T)T %s\n' -1 "$*"; }
fail() { local status=$1; shift; say "failed: $*" >&2; exit "$status"; }
aam=({{ PROGRAM }})
inside() { "$PYTHON" "$AAM/containers/run" {{ ENTER }} "$IMAGE" "$@"; }

{{ SETUP }}
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

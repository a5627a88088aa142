{{ HEADER }}
{{ SBATCH }}
# Each part is run whatever became of the one before; the exit status is 1 when any failed.
set -uo pipefail

{{ FACTS }}
IMAGE={{ IMAGE }}
KEPT={{ OUT }}   # JUnit, the self-test's and the doctor's JSON, metrics, profile, benchmark
export AAM_VAST AAM_NVME
WORK=$AAM_NVME/ci
failed=()

say() { printf '%(%F %T)T %s\n' -1 "$*"; }
fail() { local status=$1; shift; say "failed: $*" >&2; exit "$status"; }
part() {   # part NAME COMMAND...: run it, and keep what it says
    local name=$1 began=$SECONDS; shift
    say "$name: begins"
    if "$@" > >(tee "$KEPT/$name.log") 2>&1; then say "$name: passed in $((SECONDS - began)) s"
    else failed+=("$name"); say "$name: FAILED after $((SECONDS - began)) s"; fi
}
inside() { "$PYTHON" "$AAM/containers/run" {{ ENTER }} "$IMAGE" {{ PROGRAM }} "$@"; }

{{ SETUP }}
{ mkdir -p "$KEPT" "$WORK" && cd "$WORK"; } || fail 1 "cannot make $KEPT and $WORK"
[ "$IMAGE" != "$AAM/containers/aam-rocm.sif" ] || part image make -C "$AAM" container-rocm "PYTHON=$PYTHON"
part tests "$PYTHON" "$AAM/containers/session.py" rocm --image "$IMAGE"
cp -r "$AAM/results/rocm/." "$KEPT/"
part doctor inside doctor --output doctor.json
part study inside simulate --output-dir study --samples 300
part pretrain inside pretrain --table study/table.biom --tree study/tree.nwk --epochs 3 --output-dir pre
part profile inside profile step --table study/table.biom --tree study/tree.nwk --output-dir profile
part bench inside bench --output bench.json
cp -r profile doctor.json bench.json pre/metrics.jsonl pre/run.json "$KEPT/"
say "kept in $KEPT; failed: ${failed[*]:-none}"
(( ! ${#failed[@]} ))

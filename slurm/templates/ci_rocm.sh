{{ HEADER }}
{{ SBATCH }}
# Every part runs, even after a part that failed; the exit status is 1 when any failed.
set -uo pipefail

{{ SETTINGS }}
IMAGE={{ IMAGE }}
RESULTS={{ OUT }}   # JUnit, the JSON of self-test and doctor, metrics, profile, benchmark
export AAM_SHARED AAM_LOCAL
WORK=$AAM_LOCAL/ci
failed=()

log() { printf '%(%F %T)T %s\n' -1 "$*"; }
fail() { local status=$1; shift; log "failed: $*" >&2; exit "$status"; }
run_part() {   # run_part NAME COMMAND...: run a command and write its output to NAME.log too
    local name=$1 start=$SECONDS; shift
    log "$name: begins"
    if "$@" > >(tee "$RESULTS/$name.log") 2>&1; then log "$name: passed in $((SECONDS - start)) s"
    else failed+=("$name"); log "$name: FAILED after $((SECONDS - start)) s"; fi
}
aam() { "$PYTHON" "$AAM/containers/run" {{ ENTER }} "$IMAGE" {{ PROGRAM }} "$@"; }

{{ SETUP }}
{ mkdir -p "$RESULTS" "$WORK" && cd "$WORK"; } || fail 1 "cannot make $RESULTS and $WORK"
[ "$IMAGE" != "$AAM/containers/aam-rocm.sif" ] || run_part image make -C "$AAM" container-rocm "PYTHON=$PYTHON"
run_part tests "$PYTHON" "$AAM/containers/test" rocm --image "$IMAGE"
cp -r "$AAM/results/rocm/." "$RESULTS/"
run_part doctor aam doctor --output doctor.json
run_part study python -m aam.data.simulate study --samples 300
run_part pretrain aam pretrain --table study/table.biom --tree study/tree.nwk --epochs 3 --output-dir pre
run_part profile aam profile step --table study/table.biom --tree study/tree.nwk --output-dir profile
run_part bench aam bench --output bench.json
cp -r profile doctor.json bench.json pre/metrics.jsonl pre/run.json "$RESULTS/"
log "results: $RESULTS; failed: ${failed[*]:-none}"
(( ! ${#failed[@]} ))

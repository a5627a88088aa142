{{ HEADER }}
{{ SBATCH }}
# shellcheck disable=SC2034,SC1090,SC2317  # the functions read the settings
# Every part runs, even after a part that failed; the exit status is 1 when any failed.
set -uo pipefail

{{ SETTINGS }}

{{ LIBRARY }}

failed=()
run_part() {   # run_part NAME COMMAND...: run a command and write its output to NAME.log too
    local name=$1 start=$SECONDS; shift
    log "$name: begins"
    if "$@" > >(tee "$OUT/$name.log") 2>&1; then log "$name: passed in $((SECONDS - start)) s"
    else failed+=("$name"); log "$name: FAILED after $((SECONDS - start)) s"; fi
}

{{ SETUP }}
{ mkdir -p "$OUT" "$WORK" && cd "$WORK"; } || fail 1 "cannot make $OUT and $WORK"
[ "$IMAGE" != "$AAM/containers/aam-rocm.sif" ] || run_part image make -C "$AAM" container-rocm "PYTHON=$PYTHON"
run_part tests "$PYTHON" "$AAM/containers/test" rocm --image "$IMAGE"
cp -r "$AAM/results/rocm/." "$OUT/"
run_part doctor in_image {{ PROGRAM }} doctor --output doctor.json
run_part study in_image {{ SIMULATE }} study --samples 300
run_part pretrain in_image {{ PROGRAM }} pretrain --table study/table.biom --tree study/tree.nwk --epochs 3 --output-dir pre
run_part profile in_image {{ PROGRAM }} profile --table study/table.biom --tree study/tree.nwk --output-dir profile
cp -r profile doctor.json pre/metrics.jsonl pre/run.json "$OUT/"
log "results: $OUT; failed: ${failed[*]:-none}"
(( ! ${#failed[@]} ))

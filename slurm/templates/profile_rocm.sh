{{ HEADER }}
{{ SBATCH }}
# shellcheck disable=SC2034,SC1090,SC2317  # the functions read the settings
set -uo pipefail

{{ SETTINGS }}
ROCM={{ ROCM }}   # the node's ROCm, for its rocprofv3; empty: only that of the image, if any

{{ LIBRARY }}

aam() { in_image {{ PROGRAM }} "$@" || fail 1 "aam $1: see above"; }
study=(--table study/table.biom --tree study/tree.nwk)
traced() {   # rocprofv3 around a profile: of the image, or of the node, bound into the image
    local program=rocprofv3 stats
    in_image sh -c 'command -v rocprofv3' >/dev/null ||
        { program=$ROCM/bin/rocprofv3; [ -n "$ROCM" ] && [ -x "$program" ] && ENTER+=(--bind "$ROCM"); } ||
        { log "rocprofv3 is neither in the image nor on this node (${ROCM:-rocm of the site is not set}): no kernels are traced"; return; }
    in_image "$program" --kernel-trace --stats --output-format csv --output-directory traces --output-file step \
        -- {{ PROGRAM }} profile "${study[@]}" --output-dir traced || log "rocprofv3: see above"
    stats=$(find traces -name '*kernel_stats.csv' 2>/dev/null | sort | head -n 1)
    [ -n "$stats" ] || { log "rocprofv3 wrote no kernel_stats.csv below $WORK/traces: no kernels are listed"; return; }
    cp -r traces "$OUT/rocprof"
    log "rocprofv3 before ROCm 7.2.2 drops kernels of graphs: what is captured may be missing in this list"
    "$PYTHON" "$AAM/benchmarks/kernels.py" traces >"$OUT/kernels.txt" || log "the list of kernels: see above"
}

{{ SETUP }}
check_python
check_image
{ mkdir -p "$OUT" "$WORK" && cd "$WORK"; } || fail 1 "cannot make $OUT and $WORK"
aam doctor --output "$OUT/doctor.json"
in_image {{ SIMULATE }} study --samples 300 || fail 1 "the simulated study: see above"
aam pretrain "${study[@]}" --epochs 2 --output-dir warm-up   # compiles and tunes the kernels
aam profile "${study[@]}" --memory-profile --output-dir "$OUT/memory"
# First without a tracer, so that the speed is right, and kept whatever the tracer does.
aam profile "${study[@]}" --output-dir "$OUT/step"
traced
log "results: $OUT"

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
    local program=rocprofv3
    in_image sh -c 'command -v rocprofv3' >/dev/null ||
        { program=$ROCM/bin/rocprofv3; [ -n "$ROCM" ] && [ -x "$program" ] && ENTER+=(--bind "$ROCM"); } ||
        { log "rocprofv3 is neither in the image nor on this node (${ROCM:-rocm of the site is not set}): no kernels are traced"; return; }
    in_image "$program" --kernel-trace --stats --output-format csv --output-directory traces --output-file step \
        -- {{ PROGRAM }} profile step "${study[@]}" --output-dir traced || fail 1 "rocprofv3: see above"
    stats=$(find traces -name '*kernel_stats.csv' | sort | head -n 1)
    [ -n "$stats" ] || fail 1 "rocprofv3 wrote no kernel_stats.csv below $WORK/traces"
}

{{ SETUP }}
check_python
check_image
{ mkdir -p "$OUT" "$WORK" && cd "$WORK"; } || fail 1 "cannot make $OUT and $WORK"
aam doctor --output "$OUT/doctor.json"
in_image {{ SIMULATE }} study --samples 300 || fail 1 "the simulated study: see above"
aam pretrain "${study[@]}" --epochs 2 --output-dir warm-up   # compiles and tunes the kernels
aam profile memory "${study[@]}" --output-dir "$OUT/memory"
stats=
traced
# Without rocprofv3 around it, so that its times are right; it prints the ten kernels that cost most.
aam profile step "${study[@]}" ${stats:+--rocprof "$stats"} --output-dir "$OUT/step"
[ -z "$stats" ] || cp -r traces "$OUT/rocprof"
log "results: $OUT"

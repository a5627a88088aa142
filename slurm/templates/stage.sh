{{ HEADER }}
{{ SBATCH }}
# shellcheck disable=SC2034,SC1090,SC2317  # the functions read the settings
set -uo pipefail

{{ SETTINGS }}

{{ LIBRARY }}

{{ SETUP }}
{ mkdir -p "$OUT" && check_space "$OUT" 0 "${SOURCES[@]}"; } || fail 1 "stage: see above; nothing was copied"
for i in "${!SOURCES[@]}"; do
    copy_in "${SOURCES[i]}" "$OUT/${SOURCES[i]##*/}" || fail 1 "stage: ${SOURCES[i]}; earlier copies stay"
done
log "stage: $OUT holds ${#SOURCES[@]} inputs"

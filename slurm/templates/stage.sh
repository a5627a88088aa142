{{ HEADER }}
{{ SBATCH }}
set -uo pipefail

{{ FACTS }}
OUT={{ OUT }}

{{ DISK }}

{{ SETUP }}
{ mkdir -p "$OUT" && room "$OUT" 0 "${SOURCES[@]}"; } || fail 1 "stage: see above; nothing was copied"
for i in "${!SOURCES[@]}"; do
    fetch "${SOURCES[i]}" "$OUT/${SOURCES[i]##*/}" || fail 1 "stage: ${SOURCES[i]}; what was copied before stays"
done
say "stage: $OUT holds ${#SOURCES[@]} inputs"

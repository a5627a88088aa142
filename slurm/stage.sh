#!/bin/bash -l
# aam stage: copying inputs to shared storage, 1 node of SDSC Cosmos with 1 task
#
# written by  slurm/generate examples: yours names your files, your checkout and its commit
# reads       /cosmos/vast/scratch/researcher/study/table.biom
# reads       /cosmos/vast/scratch/researcher/study/tree.nwk
# reads       /cosmos/vast/scratch/researcher/study/metadata.tsv
# writes      /cosmos/vast/scratch/researcher/study
# log         /cosmos/vast/scratch/researcher/study/slurm
# first       mkdir -p /cosmos/vast/scratch/researcher/study/slurm  (--submit makes it; sbatch does not)
# image       /cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
# commit      0000000000000000000000000000000000000000
# time        12:00:00
# exit        0 finished, 85 checkpointed: submit again, 2 bad input, 1 failed
#SBATCH --job-name=stage
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=48
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/cosmos/vast/scratch/researcher/study/slurm
#SBATCH --output=/cosmos/vast/scratch/researcher/study/slurm/stage-%j.log
set -uo pipefail

SOURCES=(
    /cosmos/vast/scratch/researcher/study/table.biom
    /cosmos/vast/scratch/researcher/study/tree.nwk
    /cosmos/vast/scratch/researcher/study/metadata.tsv
)
OUT=/cosmos/vast/scratch/researcher/study

# --- copying files: under a temporary name first, then renamed -----------------------------------------------------

log() { printf '%(%F %T)T %s\n' -1 "$*"; }
fail() { local status=$1; shift; log "failed: $*" >&2; exit "$status"; }

list_files() {   # names, sizes and times of a file, or of all files in a folder
    find -L "$1" -type f ! -name '.lock' -printf '%P %s %Ts\n' | sort
}

checksum() {   # the checksum of a file, or of the checksums in a folder
    if [ -d "$1" ]; then
        (cd "$1" && find -L . -type f ! -name '.lock' -print0 | sort -z | xargs -0 -r sha256sum) | sha256sum
    else
        sha256sum <"$1"
    fi
}

copy_in() {   # copy_in FROM TO: copy a file or folder and compare checksums; an existing equal copy is kept
    local from=$1 to=$2 partial="${2%/*}/.partial-${2##*/}" sum
    [ -r "$from" ] || { log "stage-in: $from is missing or may not be read" >&2; return 1; }
    if [ -e "$to" ] && [ "$(list_files "$from")" = "$(list_files "$to")" ]; then
        log "stage-in: $to exists already"
        return 0
    fi
    mkdir -p "${to%/*}" && rm -rf "$partial" && cp -rpL "$from" "$partial" || return 1
    sum=$(checksum "$from")
    [ "$sum" = "$(checksum "$partial")" ] || { log "stage-in: the copy of $from differs from it" >&2; return 1; }
    rm -rf "$to" && mv -T "$partial" "$to" || return 1
    log "stage-in: $to, sha256 ${sum%% *}"
}

check_space() {   # check_space FOLDER BYTES PATH...: whether a disk has room for these paths and so many bytes more
    local folder=$1 needed=$2 free size
    shift 2
    while IFS=$'\t' read -r -d '' size _; do needed=$((needed + size)); done < <(du -0sLB1 --apparent-size -- "$@")
    free=$(df -B1 --output=avail "$folder" | tail -n 1)
    (( free >= needed )) || { log "stage-in: $folder has $free bytes free, $needed are needed" >&2; return 1; }
}

module purge || fail 1 'module purge'
module use /opt/modulefiles || fail 1 'module use /opt/modulefiles'
module load singularitypro/4.1.3 || fail 1 'module load singularitypro/4.1.3'
{ mkdir -p "$OUT" && check_space "$OUT" 0 "${SOURCES[@]}"; } || fail 1 "stage: see above; nothing was copied"
for i in "${!SOURCES[@]}"; do
    copy_in "${SOURCES[i]}" "$OUT/${SOURCES[i]##*/}" || fail 1 "stage: ${SOURCES[i]}; earlier copies stay"
done
log "stage: $OUT holds ${#SOURCES[@]} inputs"

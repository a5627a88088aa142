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

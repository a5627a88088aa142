# shellcheck shell=bash disable=SC2034,SC2153,SC2154
# The functions of a job script. slurm/jobs/script.py writes the settings that they read; a script names the SHA-256 of
# this file and refuses another. ARGS=--inline puts these lines into the script.

log() { printf '%(%F %T)T %s\n' -1 "$*"; }
fail() { local status=$1; shift; log "failed: $*" >&2; exit "$status"; }

# --- copying files: under a temporary name first, then renamed -----------------------------------------------------

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

drop_cached() {   # let the kernel forget the pages of copied files: on an APU they lie in the memory of the GPU
    # Pages that are not on disk yet cannot be dropped.
    find -L "$@" -type f -exec sync {} + 2>/dev/null
    find -L "$@" -type f -exec dd if={} iflag=nocache count=0 status=none \; 2>/dev/null
    return 0
}

# --- before the run ------------------------------------------------------------------------------------------------

check_python() {
    "$PYTHON" -c 'import tomllib' ||
        fail 1 "$PYTHON on this node is not Python 3.11 or newer: set the key python of the site, or load a module in setup"
}

check_image() {   # the image is the one that was checked when the job was submitted
    local i sum
    for i in "${!IMAGE_FILES[@]}"; do
        sum=$(sha256sum <"${IMAGE_FILES[i]}")
        [ "${sum%% *}" = "${IMAGE_SHA256[i]}" ] ||
            fail 1 "image: ${IMAGE_FILES[i]} is missing or has changed since the job was submitted; submit it again"
    done
}

in_image() { "$PYTHON" "$AAM/containers/run" "${ENTER[@]}" "$IMAGE" "$@"; }

stage_in() {   # on each node: copy the inputs, and the run so far from shared storage, so that all nodes see the same
    local i
    mkdir -p "$WORK/in" || { log "stage-in: cannot make $WORK" >&2; return 1; }
    for i in "${!SOURCES[@]}"; do
        [ -r "${SOURCES[i]}" ] || { log "stage-in: ${SOURCES[i]} is missing or may not be read" >&2; return 1; }
    done
    check_space "$WORK" "$RESERVE" "${SOURCES[@]}" || return
    for i in "${!SOURCES[@]}"; do copy_in "${SOURCES[i]}" "$WORK/in/${TARGETS[i]}" || return; done
    [ ${#SOURCES[@]} = 0 ] || drop_cached "${SOURCES[@]}" "$WORK/in"
    rm -rf "$WORK/run" "$WORK/taken" "$WORK/.partial-run"
    mkdir "$WORK/taken" "$WORK/.partial-run" || return
    if [ -z "$FILE" ] && find "$OUT" -maxdepth 2 -name run.json 2>/dev/null | grep -q .; then
        (cd "$OUT" && find . -mindepth 1 -maxdepth 1 ! -name '.*' ! -name slurm \
            -exec cp -rp -t "$WORK/.partial-run" {} +) || return
        find "$WORK/.partial-run" -mindepth 1 -name '.partial-*' -prune -exec rm -rf {} +
    fi
    mv -T "$WORK/.partial-run" "$WORK/run"
}

first_tensor() {   # on each node: torch sees all devices of the node, and computes on each of them
    [ "$DEVICE" != cpu ] || return 0
    cd "$WORK" && in_image "$INSIDE" - "$DEVICE" "$DEVICES" "$MASKS" <"$AAM/slurm/first_tensor.py"
}

clean() { rm -rf "$WORK"; }   # for a site that does not purge its local disks

claim_output() {   # only one job at a time writes a run
    local owner
    writer=$OUT/slurm/${FILE:+$FILE-}writer
    mkdir -p "$OUT/slurm" || fail 1 "cannot make $OUT/slurm"
    (set -o noclobber; echo "$JOB" >"$writer") 2>/dev/null && return
    owner=$(cat "$writer")
    if [ "$owner" != "$JOB" ] && [ -n "$(squeue -h -j "$owner" -o %i 2>/dev/null)" ]; then
        fail 2 "job $owner writes $OUT: scancel $owner, or choose another folder"
    fi
    echo "$JOB" >"$writer"
}

# --- stage-out: complete checkpoints and models are copied to shared storage ---------------------------------------

copy_out() {   # copy_out PATH: copy a file or folder of run/ to shared storage, unless an equal one is there
    local to=$OUT/$1 partial last=$1   # the last file to be written says whether a copy is equal
    partial=${to%/*}/.partial-$SLURM_JOB_ID-${to##*/}
    [ ! -e "$1/manifest.json" ] || last=$1/manifest.json
    ! cmp -s "$last" "$OUT/$last" 2>/dev/null || return 0
    if ! { mkdir -p "${to%/*}" && rm -rf "$partial" && cp -rp "$1" "$partial"; } || [ ! -e "$last" ]; then
        rm -rf "$partial"
        [ ! -e "$last" ] && return 0   # the run removed it meanwhile: an old checkpoint
        log "stage-out: $to could not be written" >&2
        return 1
    fi
    if [ -d "$to" ]; then mv -T "$to" "$partial.old" || return; fi
    mv -T "$partial" "$to" && rm -rf "$partial.old"
}

copy_out_all() {   # files, then complete folders, then metrics.json, which marks a finished run
    local path
    mkdir -p "$OUT" && find "$OUT" -mindepth 1 -name '.partial-*' -prune -exec rm -rf {} + || return
    while IFS= read -r -d '' path; do copy_out "${path#./}" || return; done < <(
        find . -mindepth 1 -name '.*' -prune -o -type d -exec test -e '{}/manifest.json' \; -prune \
            -o -type f ! -name metrics.json -print0
        find . -mindepth 1 -name '.*' -prune -o -type d -exec test -e '{}/manifest.json' \; -print0 -prune
        find . -mindepth 1 -name '.*' -prune -o -type f -name metrics.json -print0
    )
    while IFS= read -r -d '' path; do   # checkpoints that the run itself has removed
        [ ! -e "${path#"$OUT/"}" ] || continue
        mv -T "$path" "${path%/*}/.partial-removed" && rm -rf "${path%/*}/.partial-removed"
    done < <(find "$OUT" -type d -path '*/checkpoints/step-*' -prune -print0)
}

stage_out() {
    [ -d "$WORK/run" ] || return 0
    (cd "$WORK/run" && if [ -z "$FILE" ]; then copy_out_all; elif [ -e "$FILE" ]; then copy_out "$FILE"; fi)
}

newest_saved() {   # when the newest checkpoint or model on shared storage was written
    find "$OUT" -name manifest.json -printf '%T@\n' 2>/dev/null | sort -n | tail -n 1
}

watch_run() {   # next to the run: record the memory of its tasks, and copy new results every COPY_SECONDS
    local elapsed=0
    trap 'kill "$!" 2>/dev/null; exit 0' TERM
    trap '' USR2
    while :; do
        sleep 5 &
        wait "$!"
        # sstat asks slurmstepd on every node: once a minute is enough
        (( elapsed % 60 )) ||
            sstat -n -P -a -j "$SLURM_JOB_ID" -o MaxRSS 2>/dev/null | grep . | numfmt --from=iec >>"$WORK/memory"
        elapsed=$((elapsed + 5))
        (( elapsed % COPY_SECONDS )) || stage_out
    done
}

# --- the tasks -----------------------------------------------------------------------------------------------------

set_interfaces() {   # those of the fast network
    local path interfaces=()
    for path in ${INTERFACES:+/sys/class/net/"$INTERFACES"*}; do
        [ ! -e "$path" ] || interfaces+=("${path##*/}")
    done
    if (( ${#interfaces[@]} )); then
        export GLOO_SOCKET_IFNAME=${interfaces[0]} NCCL_SOCKET_IFNAME
        NCCL_SOCKET_IFNAME=$(IFS=,; printf %s "${interfaces[*]}")
    fi
}

use_own_device() {   # a task that works by itself sees one device of its node, and no other tasks
    local name='' devices
    case $DEVICE in hip) name=ROCR_VISIBLE_DEVICES ;; cuda) name=CUDA_VISIBLE_DEVICES ;; esac
    if [ -n "$name" ]; then
        IFS=, read -ra devices <<<"${!name:-}"
        [ "$DEVICE" = cuda ] || unset CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES
        export "$name=${devices[SLURM_LOCALID]:-$SLURM_LOCALID}"
    fi
    [ "$EACH" != cv ] || export AAM_SHARE_FOLDS=1   # aam train then takes the folds that no other process has
    own=$SLURM_LOCALID
    export SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0
}

share() {   # share COMMAND...: each task takes the next seed of its node until none is left; 85 after a warning
    local child='' warned='' worst=0 status value i
    trap 'warned=yes; [ -z "$child" ] || kill -USR2 "$child"' USR2
    for ((i = SLURM_NODEID; i < ${#VALUES[@]}; i += SLURM_NNODES)); do
        [ -z "$warned" ] || { worst=85; break; }
        mkdir "$WORK/taken/$i" 2>/dev/null || continue
        value=${VALUES[i]}
        log "task $own of $SLURMD_NODENAME: $EACH $value"
        "$@" --output-dir "run/$EACH-$value" "${OPTION[@]}" "$value" &
        child=$!
        wait_for "$child"
        status=$?
        child=
        (( status <= worst )) || worst=$status
    done
    exit "$worst"
}

task() {   # one for each device: set what differs from node to node, then enter the container
    cd "$WORK" || exit 1
    set_interfaces
    [ "$EACH" = rank ] || use_own_device
    [ ${#VALUES[@]} = 0 ] || share "$PYTHON" "$AAM/containers/run" "${ENTER[@]}" "$IMAGE" "${COMMAND[@]}"
    exec "$PYTHON" "$AAM/containers/run" "${ENTER[@]}" "$IMAGE" "${COMMAND[@]}"
}

wait_for() {   # wait until a process has really ended; a signal interrupts only `wait`
    while kill -0 "$1" 2>/dev/null; do wait "$1"; done
    wait "$1"
}

# --- the job -------------------------------------------------------------------------------------------------------

relay() { trap '' TERM USR2; exec tee "$said" >&2; }   # what srun says; without a reader srun would die of its next line

first_failure() {   # the node and the status of the first task that failed, as srun said
    sleep 1   # until relay has written everything
    sed -nE '/ exit code 85$/d; s/^srun: error: ([^:]+): tasks? [-0-9,]+: (Exited with exit code )?(.*)$/\1 \3/p' \
        "$said" | head -n 1
}

on_each_node() {   # run a function on every node
    srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpus-per-task=1 --kill-on-bad-exit=1 \
        bash -c "set -uo pipefail; $(declare -p SOURCES TARGETS RESERVE WORK OUT FILE AAM PYTHON IMAGE ENTER DEVICE \
            DEVICES INSIDE MASKS); $(declare -f log list_files checksum copy_in check_space drop_cached stage_in in_image \
            first_tensor clean); $1" 2> >(relay) &
    wait_for "$!"
}

launch() {   # start one task for each device and set `status`
    local failed=
    MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    MASTER_PORT=$((15000 + SLURM_JOB_ID % 5000))
    export MASTER_ADDR MASTER_PORT
    watch_run &
    local watcher=$!
    "${SRUN[@]}" bash -c "$(declare -p AAM PYTHON IMAGE WORK ENTER COMMAND DEVICE EACH OPTION VALUES INTERFACES)
        $(declare -f log set_interfaces use_own_device share wait_for task); task" 2> >(relay) &
    step=$!
    [ -z "$warned" ] || kill -USR2 "$step"
    wait_for "$step"
    status=$?
    step=
    # The rank that failed, not those that srun killed because they waited for it.
    [ "$status" != 137 ] || read -r _ failed <<<"$(first_failure)"
    [[ ! ${failed:-} =~ ^[0-9]+$ ]] || status=$failed
    kill "$watcher" 2>/dev/null
    wait_for "$watcher"
}

summary() {
    local job submitted started rate memory
    job=$(scontrol show job -o "$JOB")
    submitted=$(date -d "$(grep -o ' SubmitTime=[^ ]*' <<<"$job" | cut -d = -f 2)" +%s)
    started=$(date -d "$(grep -o ' StartTime=[^ ]*' <<<"$job" | cut -d = -f 2)" +%s)
    rate=$(cat "$WORK"/run/metrics.jsonl "$WORK"/run/*/metrics.jsonl 2>/dev/null |
        grep -o '"samples_per_s": [0-9.]*' | tail -n 1 | cut -d ' ' -f 2)
    memory=$(sort -n "$WORK/memory" 2>/dev/null | tail -n 1)
    log "summary: status $status, start $((${SLURM_RESTART_COUNT:-0} + 1)), waited $((started - submitted)) s," \
        "ran $(($(date +%s) - started)) s, ${rate:-no} samples/s," \
        "peak memory of a task $( [ -n "$memory" ] && numfmt --to=iec "$memory" || echo 'not measured')"
}

was_preempted() { scontrol show job -o "$JOB" | grep -q ' PreemptTime=[0-9]'; }

may_go_on() {   # whether another start would help
    # 85: all ranks have saved. 140: warned before aam was ready. 137: killed, often by the kernel when memory is short.
    [ -z "$ended" ] || was_preempted || return 1
    case $status in
        85 | 140) return 0 ;;
        137) [ "$(newest_saved)" != "$saved_before" ] && return 0
            log "not requeued: a task was killed before this start saved anything new, often for lack of memory" >&2 ;;
    esac
    return 1
}

begin() {   # the signals of the job, and how often it has started
    JOB=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
    JOB=${JOB:-$SLURM_JOB_ID}   # the plain id of an array's last element would requeue all elements
    step='' warned='' ended='' status=85 said=$(mktemp)
    trap 'rm -f "$said"' EXIT
    trap 'warned=yes; log "USR2: checkpoint, copy, requeue"; [ -z "$step" ] || kill -USR2 "$step"' USR2
    trap 'ended=yes; log "TERM: cancelled, preempted, or out of time; saved checkpoints are copied"' TERM
    log "job $JOB on $SLURM_JOB_NODELIST, start $((${SLURM_RESTART_COUNT:-0} + 1)) of at most $((MOST_REQUEUES + 1))"
    (( ${SLURM_RESTART_COUNT:-0} <= MOST_REQUEUES )) || fail 85 "started too often; read the log, then submit again"
}

try_elsewhere() {   # after a missing device (1): once, the same job without this node; others wait for that one then
    local node code new id waits
    read -r node code <<<"$(first_failure)"
    { [ "$code" = 1 ] && scontrol show job -o "$JOB" | grep -q ' ExcNodeList=(null)'; } || return 0
    rm -f "$writer"
    new=$(sbatch --parsable --exclude="$node" "$0") || return 0
    log "job ${new%%;*} does the same without $node"
    while read -r id waits; do
        waits=$(sed -E "s/\\([a-z]+\\)//g; s/:$JOB\\b/:${new%%;*}/" <<<"$waits")
        scontrol update "JobId=$id" "Dependency=$waits"
    done < <(squeue -h -t PD -o '%i %E' | grep -E ":$JOB\\b")
}

run_job() {   # stage in, run, stage out, requeue or end
    local copied=
    check_python
    claim_output
    check_image
    on_each_node stage_in || fail 1 "stage-in: see above; nothing was computed"
    on_each_node first_tensor || { try_elsewhere; fail 1 "first tensor: see above; nothing was computed"; }
    saved_before=$(newest_saved)
    [ -n "$warned" ] || launch
    for _ in 1 2 3; do stage_out && copied=yes && break; sleep 5; done
    [ -n "$copied" ] || { log "stage-out: $OUT is not complete" >&2; [ "$status" != 0 ] || status=1; }
    summary
    if may_go_on; then
        if (( ${SLURM_RESTART_COUNT:-0} < MOST_REQUEUES )); then
            log "requeued"
            scontrol requeue "$JOB" && exit 85   # ends this script at once
        fi
        log "not requeued again after $MOST_REQUEUES times: read the log, then submit the same command again"
    fi
    rm -f "$writer"
    [ -z "$CLEAN" ] || [ -z "$copied" ] || on_each_node clean
    exit "$status"
}

#!/bin/bash -l
# aam pretrain_single: pretraining on one device, 1 node of SDSC Cosmos with 1 task
#
# written by  slurm/generate examples: yours names your files, your checkout and its commit
# reads       /cosmos/vast/scratch/researcher/study/table.biom
# reads       /cosmos/vast/scratch/researcher/study/tree.nwk
# writes      /cosmos/vast/scratch/researcher/pre
# log         /cosmos/vast/scratch/researcher/pre/slurm
# first       mkdir -p /cosmos/vast/scratch/researcher/pre/slurm  (--submit makes it; sbatch does not)
# image       /cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
# commit      0000000000000000000000000000000000000000
# time        12:00:00; 300 s before its end:
#             checkpoint, copy to shared storage, requeue (at most 20 times)
#             300 s: 240 s for SLURM's delay and a step, and three times the 45.7 MB of a checkpoint
#             at 200 MB/s, in whole minutes, at most half of the time
# exit        0 finished, 85 checkpointed: submit again, 2 bad input, 1 failed
#SBATCH --job-name=pretrain_single
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=48
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR2@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/cosmos/vast/scratch/researcher/pre/slurm
#SBATCH --output=/cosmos/vast/scratch/researcher/pre/slurm/pretrain_single-%j.log
# shellcheck disable=SC2317  # srun passes some functions to the nodes
set -uo pipefail

# --- settings, resolved when the script was written ----------------------------------------------------------------

AAM=/cosmos/vast/scratch/researcher/aam
PYTHON=python3
AAM_SHARED=/cosmos/vast/scratch/researcher
AAM_LOCAL='/scratch/researcher/job_'"$SLURM_JOB_ID"
IMAGE=/cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
OUT=/cosmos/vast/scratch/researcher/pre
FILE=''
SOURCES=(
    /cosmos/vast/scratch/researcher/study/table.biom
    /cosmos/vast/scratch/researcher/study/tree.nwk
)
TARGETS=(
    table/table.biom
    tree/tree.nwk
)
ENTER=(--engine singularity)
COMMAND=(
    aam pretrain
    --table in/table/table.biom
    --tree in/tree/tree.nwk
    --threads 24
    --output-dir run
    --resume-from auto
)
RESERVE=1439432704  # bytes of a node's disk for what the job writes
COPY_SECONDS=300  # between copies of new checkpoints
MOST_REQUEUES=20
export AAM_SHARED AAM_LOCAL
WORK=$AAM_LOCAL/aam   # on each node: in/ holds the inputs, run/ what the command writes
GPUS='/dev/kfd /dev/nvidiactl'   # a node with one of them has a GPU
JOB=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
JOB=${JOB:-$SLURM_JOB_ID}   # the plain id of an array's last element would requeue all elements

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

stage_in() {   # on each node: copy the inputs, and the run so far from shared storage, so that all nodes see the same
    local i
    mkdir -p "$WORK/in" || { log "stage-in: cannot make $WORK" >&2; return 1; }
    for i in "${!SOURCES[@]}"; do
        [ -r "${SOURCES[i]}" ] || { log "stage-in: ${SOURCES[i]} is missing or may not be read" >&2; return 1; }
    done
    check_space "$WORK" "$RESERVE" "${SOURCES[@]}" || return
    for i in "${!SOURCES[@]}"; do copy_in "${SOURCES[i]}" "$WORK/in/${TARGETS[i]}" || return; done
    [ ${#SOURCES[@]} = 0 ] || drop_cached "${SOURCES[@]}" "$WORK/in"
    rm -rf "$WORK/run" "$WORK/.partial-run"
    mkdir "$WORK/.partial-run" || return
    if [ -z "$FILE" ] && [ -f "$OUT/run.json" ]; then
        (cd "$OUT" && find . -mindepth 1 -maxdepth 1 ! -name '.*' ! -name slurm \
            -exec cp -rp -t "$WORK/.partial-run" {} +) || return
        find "$WORK/.partial-run" -mindepth 1 -name '.partial-*' -prune -exec rm -rf {} +
    fi
    mv -T "$WORK/.partial-run" "$WORK/run"
}

drop_cached() {   # let the kernel forget the pages of copied files: on an APU they lie in the memory of the GPU
    # Pages that are not on disk yet cannot be dropped.
    find -L "$@" -type f -exec sync {} + 2>/dev/null
    find -L "$@" -type f -exec dd if={} iflag=nocache count=0 status=none \; 2>/dev/null
    return 0
}

first_tensor() {   # on each node with a GPU: a tensor on each device, in processes of their own
    local path found=
    for path in $GPUS; do [ ! -e "$path" ] || found=$path; done
    [ -n "$found" ] || return 0
    cd "$WORK" && "$PYTHON" "$AAM/containers/run" "${ENTER[@]}" "$IMAGE" python -m aam.device.allocation
}

clean() { rm -rf "$WORK"; }   # for a site that does not purge its local disks

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

watch_run() {   # beside the run: record the memory of its tasks, and copy new results every COPY_SECONDS
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

# --- the run -------------------------------------------------------------------------------------------------------

task() {   # one for each device: set what differs from node to node, then enter the container
    cd "$WORK" || exit 1
    local path interfaces=()
    for path in /sys/class/net/hsn*; do [ ! -e "$path" ] || interfaces+=("${path##*/}"); done
    if (( ${#interfaces[@]} )); then
        export GLOO_SOCKET_IFNAME=${interfaces[0]} NCCL_SOCKET_IFNAME
        NCCL_SOCKET_IFNAME=$(IFS=,; printf %s "${interfaces[*]}")
    fi
    exec "$PYTHON" "$AAM/containers/run" "${ENTER[@]}" "$IMAGE" "${COMMAND[@]}"
}

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

on_each_node() {   # run a function of this script on every node
    srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpus-per-task=1 --kill-on-bad-exit=1 \
        bash -c "set -uo pipefail; $(declare -p SOURCES TARGETS RESERVE WORK OUT FILE AAM PYTHON IMAGE ENTER GPUS)
            $(declare -f log list_files checksum copy_in check_space drop_cached stage_in first_tensor clean); $1" &
    wait_for "$!"
}

wait_for() {   # wait until a process has really ended; a signal interrupts only `wait`
    while kill -0 "$1" 2>/dev/null; do wait "$1"; done
    wait "$1"
}

launch() {   # start one task for each device and set `status`
    MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    MASTER_PORT=$((15000 + SLURM_JOB_ID % 5000))
    export MASTER_ADDR MASTER_PORT
    watch_run &
    local watcher=$!
    srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=48 \
        --kill-on-bad-exit=0 --wait=120 --export=ALL \
        bash -c "$(declare -p AAM PYTHON IMAGE WORK ENTER COMMAND); $(declare -f task); task" &
    step=$!
    [ -z "$warned" ] || kill -USR2 "$step"
    wait_for "$step"
    status=$?
    step=
    kill "$watcher" 2>/dev/null
    wait_for "$watcher"
}

summary() {
    local job submitted started rate memory
    job=$(scontrol show job -o "$JOB")
    submitted=$(date -d "$(grep -o ' SubmitTime=[^ ]*' <<<"$job" | cut -d = -f 2)" +%s)
    started=$(date -d "$(grep -o ' StartTime=[^ ]*' <<<"$job" | cut -d = -f 2)" +%s)
    rate=$(cat "$WORK"/run/metrics.jsonl "$WORK"/run/fold-*/metrics.jsonl 2>/dev/null |
        grep -o '"samples_per_s": [0-9.]*' | tail -n 1 | cut -d ' ' -f 2)
    memory=$(sort -n "$WORK/memory" 2>/dev/null | tail -n 1)
    log "summary: status $status, start $((${SLURM_RESTART_COUNT:-0} + 1)), waited $((started - submitted)) s," \
        "ran $(($(date +%s) - started)) s, ${rate:-no} samples/s," \
        "peak memory of a task $( [ -n "$memory" ] && numfmt --to=iec "$memory" || echo 'not measured')"
}

step='' warned='' cancelled='' status=85
trap 'warned=yes; log "USR2: checkpoint, copy, requeue"; [ -z "$step" ] || kill -USR2 "$step"' USR2
trap 'cancelled=yes; log "TERM: cancelled, or out of time; saved checkpoints are copied"' TERM

log "job $JOB on $SLURM_JOB_NODELIST, start $((${SLURM_RESTART_COUNT:-0} + 1)) of at most $((MOST_REQUEUES + 1))"
(( ${SLURM_RESTART_COUNT:-0} <= MOST_REQUEUES )) || fail 85 "started too often; read the log, then submit again"
module purge || fail 1 'module purge'
module use /opt/modulefiles || fail 1 'module use /opt/modulefiles'
module load singularitypro/4.1.3 || fail 1 'module load singularitypro/4.1.3'
"$PYTHON" -c 'import tomllib' ||
    fail 1 "$PYTHON on this node is not Python 3.11 or newer: write the script with a Python that is"
claim_output
on_each_node stage_in || fail 1 "stage-in: see above; nothing was computed"
on_each_node first_tensor || fail 1 "first tensor: see above; nothing was computed"
[ -n "$warned" ] || launch
copied=
for _ in 1 2 3; do stage_out && copied=yes && break; sleep 5; done
[ -n "$copied" ] || { log "stage-out: $OUT is not complete" >&2; [ "$status" != 0 ] || status=1; }
summary

# 85: all ranks have saved. 137: killed, often by the kernel when memory is short. 140: warned before aam was ready.
if [ -z "$cancelled" ] && { [ "$status" = 85 ] || [ "$status" = 137 ] || [ "$status" = 140 ]; }; then
    if (( ${SLURM_RESTART_COUNT:-0} < MOST_REQUEUES )); then
        log "requeued"
        scontrol requeue "$JOB" && exit 85   # ends this script at once
    fi
    log "not requeued again after $MOST_REQUEUES times: read the log, then submit the same command again"
fi
rm -f "$writer"
exit "$status"

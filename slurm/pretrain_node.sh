#!/bin/bash -l
# aam pretrain_node: pretraining on a node, 1 node of SDSC Cosmos with 4 tasks, one for each device
#
# written by  slurm/generate examples: yours names your files, your checkout and its commit
# reads       /cosmos/vast/scratch/researcher/study/table.biom
# reads       /cosmos/vast/scratch/researcher/study/tree.nwk
# writes      /cosmos/vast/scratch/researcher/pre
# log         /cosmos/vast/scratch/researcher/pre/slurm
# image       /cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
# commit      0000000000000000000000000000000000000000
# time        12:00:00; 300 s before its end:
#             checkpoint, copy to VAST, back into the queue (at most 20 times)
#             300 s: 240 for SLURM's clock and a step, and thrice the 45.7 MB of a checkpoint
#             at 200 MB/s, in whole minutes, at most half of the time
# exit        0 finished, 85 checkpointed, submit it again, 2 bad input, 1 failed
#SBATCH --job-name=pretrain_node
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=48
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR2@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/cosmos/vast/scratch/researcher/pre/slurm
#SBATCH --output=/cosmos/vast/scratch/researcher/pre/slurm/pretrain_node-%j.log
# shellcheck disable=SC2317  # some functions are handed to the nodes by srun
set -uo pipefail

# --- what this job is, resolved when it was written ----------------------------------------------------------------

AAM=/cosmos/vast/scratch/researcher/aam
PYTHON=python3
AAM_VAST=/cosmos/vast/scratch/researcher
AAM_NVME='/scratch/researcher/job_'"$SLURM_JOB_ID"
IMAGE=/cosmos/vast/scratch/researcher/aam/containers/aam-rocm.sif
OUT=/cosmos/vast/scratch/researcher/pre
FILE=''
SOURCES=(
    /cosmos/vast/scratch/researcher/study/table.biom
    /cosmos/vast/scratch/researcher/study/tree.nwk
)
PLACES=(
    table/table.biom
    tree/tree.nwk
)
ENTER=(--engine singularity)
COMMAND=(
    aam pretrain
    --table in/table/table.biom
    --tree in/tree/tree.nwk
    --threads 24
    --distributed
    --output-dir run
    --resume-from auto
)
RESERVE=1439432704  # bytes of a node's disk for what is written
COPY_SECONDS=300  # between copies of new checkpoints
MOST_REQUEUES=20
export AAM_VAST AAM_NVME
WORK=$AAM_NVME/aam   # on each node: in/ holds the inputs, run/ what the command writes
ME=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
ME=${ME:-$SLURM_JOB_ID}   # the plain id of an array's last element would requeue all of them

# --- files: copied whole, under a partial name first ---------------------------------------------------------------

say() { printf '%(%F %T)T %s\n' -1 "$*"; }
fail() { local status=$1; shift; say "failed: $*" >&2; exit "$status"; }

listing() {   # names, sizes and times of a file, or of all in a folder
    find -L "$1" -type f ! -name '.lock' -printf '%P %s %Ts\n' | sort
}

sums() {   # the checksum of a file, or of the checksums in a folder
    if [ -d "$1" ]; then
        (cd "$1" && find -L . -type f ! -name '.lock' -print0 | sort -z | xargs -0 -r sha256sum) | sha256sum
    else
        sha256sum <"$1"
    fi
}

fetch() {   # fetch FROM TO: copy a file or folder and compare checksums; what is there already is kept
    local from=$1 to=$2 part="${2%/*}/.partial-${2##*/}" sum
    [ -r "$from" ] || { say "stage-in: $from is missing or may not be read" >&2; return 1; }
    if [ -e "$to" ] && [ "$(listing "$from")" = "$(listing "$to")" ]; then
        say "stage-in: $to is there already"
        return 0
    fi
    mkdir -p "${to%/*}" && rm -rf "$part" && cp -rpL "$from" "$part" || return 1
    sum=$(sums "$from")
    [ "$sum" = "$(sums "$part")" ] || { say "stage-in: the copy of $from differs from it" >&2; return 1; }
    rm -rf "$to" && mv -T "$part" "$to" || return 1
    say "stage-in: $to, sha256 ${sum%% *}"
}

room() {   # room FOLDER BYTES PATH...: whether a disk holds these paths and so many bytes more
    local folder=$1 need=$2 free size
    shift 2
    while IFS=$'\t' read -r -d '' size _; do need=$((need + size)); done < <(du -0sLB1 --apparent-size -- "$@")
    free=$(df -B1 --output=avail "$folder" | tail -n 1)
    (( free >= need )) || { say "stage-in: $folder has $free bytes free, $need are needed" >&2; return 1; }
}

stage_in() {   # on each node: the inputs, and the run so far from VAST, so that all nodes see the same
    local i
    mkdir -p "$WORK/in" || { say "stage-in: cannot make $WORK" >&2; return 1; }
    for i in "${!SOURCES[@]}"; do
        [ -r "${SOURCES[i]}" ] || { say "stage-in: ${SOURCES[i]} is missing or may not be read" >&2; return 1; }
    done
    room "$WORK" "$RESERVE" "${SOURCES[@]}" || return
    for i in "${!SOURCES[@]}"; do fetch "${SOURCES[i]}" "$WORK/in/${PLACES[i]}" || return; done
    rm -rf "$WORK/run" "$WORK/.partial-run"
    mkdir "$WORK/.partial-run" || return
    if [ -z "$FILE" ] && [ -f "$OUT/run.json" ]; then
        (cd "$OUT" && find . -mindepth 1 -maxdepth 1 ! -name '.*' ! -name slurm \
            -exec cp -rp -t "$WORK/.partial-run" {} +) || return
        find "$WORK/.partial-run" -mindepth 1 -name '.partial-*' -prune -exec rm -rf {} +
    fi
    mv -T "$WORK/.partial-run" "$WORK/run"
}

clean() { rm -rf "$WORK"; }   # for a site that does not empty its disks itself

# --- stage-out: checkpoints and models are copied to VAST when they are whole --------------------------------------

put() {   # put PATH: copy a file or folder of run/ to VAST, unless the same is there
    local to=$OUT/$1 part seal=$1
    part=${to%/*}/.partial-$SLURM_JOB_ID-${to##*/}
    [ ! -e "$1/manifest.json" ] || seal=$1/manifest.json
    ! cmp -s "$seal" "$OUT/$seal" 2>/dev/null || return 0
    if ! { mkdir -p "${to%/*}" && rm -rf "$part" && cp -rp "$1" "$part"; } || [ ! -e "$seal" ]; then
        rm -rf "$part"
        [ ! -e "$seal" ] && return 0   # it was removed meanwhile: an old checkpoint
        say "stage-out: $to could not be written" >&2
        return 1
    fi
    if [ -d "$to" ]; then mv -T "$to" "$part.old" || return; fi
    mv -T "$part" "$to" && rm -rf "$part.old"
}

put_all() {   # files, then whole folders, then metrics.json, which says that a run is finished
    local path
    mkdir -p "$OUT" && find "$OUT" -mindepth 1 -name '.partial-*' -prune -exec rm -rf {} + || return
    while IFS= read -r -d '' path; do put "${path#./}" || return; done < <(
        find . -mindepth 1 -name '.*' -prune -o -type d -exec test -e '{}/manifest.json' \; -prune \
            -o -type f ! -name metrics.json -print0
        find . -mindepth 1 -name '.*' -prune -o -type d -exec test -e '{}/manifest.json' \; -print0 -prune
        find . -mindepth 1 -name '.*' -prune -o -type f -name metrics.json -print0
    )
    while IFS= read -r -d '' path; do   # checkpoints that the run itself has removed
        [ ! -e "${path#"$OUT/"}" ] || continue
        mv -T "$path" "${path%/*}/.partial-gone" && rm -rf "${path%/*}/.partial-gone"
    done < <(find "$OUT" -type d -path '*/checkpoints/step-*' -prune -print0)
}

stage_out() {
    [ -d "$WORK/run" ] || return 0
    (cd "$WORK/run" && if [ -z "$FILE" ]; then put_all; elif [ -e "$FILE" ]; then put "$FILE"; fi)
}

watch() {   # beside the run: memory of its tasks, and every COPY_SECONDS what is new goes to VAST
    local passed=0
    trap 'kill "$!" 2>/dev/null; exit 0' TERM
    trap '' USR2
    while :; do
        sleep 5 &
        wait "$!"
        sstat -n -P -a -j "$SLURM_JOB_ID" -o MaxRSS 2>/dev/null | grep . | numfmt --from=iec >>"$WORK/memory"
        passed=$((passed + 5))
        (( passed % COPY_SECONDS )) || stage_out
    done
}

# --- the run -------------------------------------------------------------------------------------------------------

task() {   # one for each device: what differs from node to node is found out here, then the container is entered
    cd "$WORK" || exit 1
    local path found=()
    for path in /sys/class/net/hsn*; do [ ! -e "$path" ] || found+=("${path##*/}"); done
    if (( ${#found[@]} )); then
        export GLOO_SOCKET_IFNAME=${found[0]} NCCL_SOCKET_IFNAME
        NCCL_SOCKET_IFNAME=$(IFS=,; printf %s "${found[*]}")
    fi
    exec "$PYTHON" "$AAM/containers/run" "${ENTER[@]}" "$IMAGE" "${COMMAND[@]}"
}

claim() {   # one job at a time writes a run
    local owner
    writer=$OUT/slurm/${FILE:+$FILE-}writer
    mkdir -p "$OUT/slurm" || fail 1 "cannot make $OUT/slurm"
    (set -o noclobber; echo "$ME" >"$writer") 2>/dev/null && return
    owner=$(cat "$writer")
    if [ "$owner" != "$ME" ] && [ -n "$(squeue -h -j "$owner" -o %i 2>/dev/null)" ]; then
        fail 2 "job $owner writes $OUT: scancel $owner, or choose another folder"
    fi
    echo "$ME" >"$writer"
}

each_node() {   # run a function of this script on every node
    srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpus-per-task=1 --kill-on-bad-exit=1 \
        bash -c "set -uo pipefail; $(declare -p SOURCES PLACES RESERVE WORK OUT FILE)
            $(declare -f say listing sums fetch room stage_in clean); $1" &
    wait_for "$!"
}

wait_for() {   # wait until a process has really ended; a signal interrupts `wait` only
    while kill -0 "$1" 2>/dev/null; do wait "$1"; done
    wait "$1"
}

launch() {   # one task for each device; sets status
    MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    MASTER_PORT=$((15000 + SLURM_JOB_ID % 5000))
    export MASTER_ADDR MASTER_PORT
    watch &
    local watching=$!
    srun --nodes=1 --ntasks=4 --ntasks-per-node=4 --cpus-per-task=48 \
        --kill-on-bad-exit=0 --wait=120 --export=ALL \
        --cpu-bind=mask_cpu:0xffffff000000000000000000ffffff,0xffffff000000000000000000ffffff000000,0xffffff000000000000000000ffffff000000000000,0xffffff000000000000000000ffffff000000000000000000 \
        bash -c "$(declare -p AAM PYTHON IMAGE WORK ENTER COMMAND); $(declare -f task); task" &
    step=$!
    [ -z "$warned" ] || kill -USR2 "$step"
    wait_for "$step"
    status=$?
    step=
    kill "$watching" 2>/dev/null
    wait_for "$watching"
}

summary() {
    local told submitted started rate memory
    told=$(scontrol show job -o "$ME")
    submitted=$(date -d "$(grep -o ' SubmitTime=[^ ]*' <<<"$told" | cut -d = -f 2)" +%s)
    started=$(date -d "$(grep -o ' StartTime=[^ ]*' <<<"$told" | cut -d = -f 2)" +%s)
    rate=$(cat "$WORK"/run/metrics.jsonl "$WORK"/run/fold-*/metrics.jsonl 2>/dev/null |
        grep -o '"samples_per_s": [0-9.]*' | tail -n 1 | cut -d ' ' -f 2)
    memory=$(sort -n "$WORK/memory" 2>/dev/null | tail -n 1)
    say "summary: status $status, start $((${SLURM_RESTART_COUNT:-0} + 1)), waited $((started - submitted)) s," \
        "ran $(($(date +%s) - started)) s, ${rate:-no} samples/s," \
        "peak memory of a task $( [ -n "$memory" ] && numfmt --to=iec "$memory" || echo 'not measured')"
}

step='' warned='' ended='' status=85
trap 'warned=yes; say "USR2: checkpoint, copy, requeue"; [ -z "$step" ] || kill -USR2 "$step"' USR2
trap 'ended=yes; say "TERM: cancelled, or out of time; what is saved is copied"' TERM

say "job $ME on $SLURM_JOB_NODELIST, start $((${SLURM_RESTART_COUNT:-0} + 1)) of at most $((MOST_REQUEUES + 1))"
(( ${SLURM_RESTART_COUNT:-0} <= MOST_REQUEUES )) || fail 85 "started too often; look at the log, then submit again"
module purge || fail 1 'module purge'
module use /opt/modulefiles || fail 1 'module use /opt/modulefiles'
module load singularitypro/4.1.3 || fail 1 'module load singularitypro/4.1.3'
"$PYTHON" -c 'import tomllib' || fail 1 "$PYTHON on this node is no Python 3.11 or newer: write the script with one that is"
claim
each_node stage_in || fail 1 "stage-in: see above; nothing was trained"
[ -n "$warned" ] || launch
copied=
for _ in 1 2 3; do stage_out && copied=yes && break; sleep 5; done
[ -n "$copied" ] || { say "stage-out: $OUT is not complete" >&2; [ "$status" != 0 ] || status=1; }
summary

# 85: all ranks have saved. 137: killed, as by the kernel when memory is short. 140: the warning came too early to be heard.
if [ -z "$ended" ] && { [ "$status" = 85 ] || [ "$status" = 137 ] || [ "$status" = 140 ]; }; then
    if (( ${SLURM_RESTART_COUNT:-0} < MOST_REQUEUES )); then
        say "requeued"
        scontrol requeue "$ME" && exit 85   # ends this script at once
    fi
    say "not requeued again after $MOST_REQUEUES times: look at the log, then submit the same command again"
fi
rm -f "$writer"
exit "$status"

#!/bin/sh
# A gate on the recorded demo: it passes, and fails with a planted regression, too few KV blocks.
# The engine's scheduler runs the recording again, so that the result is the same every time.
# Usage: demo.sh RECORDING FOLDER, with `seqtop` on the path; writes to FOLDER.
set -eu
recording=$1 folder=$2

seqtop whatif "$recording" -o "$folder/same.seqtop" > /dev/null
seqtop whatif "$recording" --set num_gpu_blocks=-20% -o "$folder/fewer-blocks.seqtop" > /dev/null

seqtop check "$folder/same.seqtop" --baseline "$recording" --tolerance 5% \
    --slo ttft=10s,tpot=60ms,p=99 --fail-if 'preemptions>3'

status=0
seqtop check "$folder/fewer-blocks.seqtop" --baseline "$recording" --tolerance 5% \
    --slo ttft=10s,tpot=60ms,p=99 --fail-if 'preemptions>3' || status=$?
if [ "$status" -ne 1 ]; then
    echo "the planted regression was not found: exit status $status" >&2
    exit 1
fi

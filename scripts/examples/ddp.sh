#!/usr/bin/env bash
# Train and test on all GPUs of this machine (or on N processes of the CPU: ACCELERATOR=cpu DEVICES=2 scripts/examples/ddp.sh).
# Lightning starts the processes. Further arguments go to both commands, e.g. --seed_everything 1.
set -euo pipefail
cd "$(dirname "$0")/../.."

files=(-c configs/base.yaml -c configs/data/fashion_mnist.yaml -c configs/noise/gch.yaml -c configs/trainer/ddp.yaml)
devices=(--trainer.accelerator "${ACCELERATOR:-auto}" --trainer.devices "${DEVICES:-auto}")

python -m chaosgate fit "${files[@]}" "${devices[@]}" "$@"
python -m chaosgate test "${files[@]}" "${devices[@]}" "$@"

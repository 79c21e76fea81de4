#!/usr/bin/env bash
# The same as ddp.sh with torchrun as the starter of the processes, which also works across machines:
#   on every machine: NODES=2 RENDEZVOUS=first-machine:29500 scripts/examples/torchrun.sh
# trainer.devices and trainer.num_nodes must say what torchrun was told. Further arguments go to both commands.
set -euo pipefail
cd "$(dirname "$0")/../.."

processes=${PROCESSES:-2}
nodes=${NODES:-1}
files=(-c configs/base.yaml -c configs/data/fashion_mnist.yaml -c configs/noise/gch.yaml -c configs/trainer/ddp.yaml)
devices=(--trainer.accelerator "${ACCELERATOR:-auto}" --trainer.devices "$processes" --trainer.num_nodes "$nodes")
if [[ $nodes == 1 ]]; then
  rendezvous=(--standalone)
else
  rendezvous=(--nnodes "$nodes" --rdzv_backend c10d --rdzv_id chaosgate --rdzv_endpoint "${RENDEZVOUS:?host:port of one machine}")
fi

for action in fit test; do
  python -m torch.distributed.run "${rendezvous[@]}" --nproc_per_node "$processes" -m chaosgate \
    "$action" "${files[@]}" "${devices[@]}" "$@"
done

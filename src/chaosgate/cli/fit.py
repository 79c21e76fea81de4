"""``chaosgate fit|validate|test|predict``: what studies call, and the short help.

usage: chaosgate {0} -c FILE [-c FILE ...] [--KEY VALUE ...]

{1}

  chaosgate {0} -c base -c data/fashion_mnist -c noise/gch

  -c FILE                             a file, or a shipped name; later ones win
  --print_config                      show the whole configuration, and stop
  --model.backbone NAME               of timm, or resnet10_small, resnet18_small
  --model.weights FILE                start from a .safetensors, .pth or .ckpt
  --optimizer.lr 0.1                  with --optimizer NAME
  --data.root FOLDER                  where the images are
  --data.batch_size 64                images per process and step
  --data.corruptions paper            test: paper, all, [fog, contrast] or null
  --noise.gate.init_args.log_std 0.5  strength of Gaussian Chaos (noise/gch)
  --noise.stages [L3,L4]              where; see 'chaosgate sites NETWORK'
  --noise.monte_carlo 8               test, predict: mean of 8 noised passes
  --trainer.max_epochs 30             length
  --trainer.devices 2                 processes or GPUs; with -c trainer/ddp
  --seed_everything 1                 seed of everything
  --run_dir FOLDER                    where the run is kept (runs/NAME)
  --resume                            fit: continue an interrupted run
  --checkpoints best,last             test: which networks of the run (best)
  --output FILE.csv                   predict: where to write; .csv or .parquet

'chaosgate configs' lists the shipped files, '--help all' every key.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

HELP = __doc__.partition("\n\n")[2]
_TITLES = {
    "fit": "Train a network.",
    "validate": "Metrics of a trained network on validation images; give the words of its 'fit'.",
    "test": "Test a trained network, clean and corrupted; give the words of its 'fit'.",
    "predict": "Write the predictions for all test images; give the words of the 'fit'.",
}


def main(arguments: Sequence[str]) -> int:
    """Run a command; return its exit status."""
    words = list(arguments)
    for flag in {"-h", "--help"}.intersection(words):
        place = words.index(flag)
        if words[place + 1 : place + 2] != ["all"]:
            print(HELP.format(words[0], _TITLES[words[0]]), end="")
            return 0
        del words[place + 1]
    from chaosgate.cli import training

    return training.main(words)


class Outcome(NamedTuple):
    """How a command ended: its exit status, and the rows that a test has written."""

    status: int
    rows: list[dict[str, Any]]


def execute(arguments: Sequence[str]) -> Outcome:
    """Run a command for a program that continues afterwards, such as the worker of a study.

    Lightning starts further processes by repeating ``sys.argv``, and leaves their addresses in the
    environment, where the next command would look for them.
    """
    import torch.distributed as dist

    import chaosgate.__main__ as command
    from chaosgate.cli.training import run

    argv, environment = sys.argv, dict(os.environ)
    sys.argv = [str(command.__file__), *arguments]
    try:
        return Outcome(*run(arguments))
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The configuration of a command line as plain data with all defaults; nothing is built.

    What the command would refuse raises a ValueError with the same message. The first call makes the
    parser (about a second).

    Args:
        arguments: As after ``chaosgate``: ``fit`` or another command, then files and keys.
    """
    from chaosgate.cli.training import compose

    return compose(arguments[1:])

"""The short help of fit, validate, test and predict, and what ``fit`` says at its end. Imports nothing heavy."""

import shlex
from collections.abc import Iterable, Sequence

from chaosgate.run.config_files import allow_flags
from chaosgate.run.directory import RunDirectory

_TITLES = {
    "fit": "Train a network.",
    "validate": "Metrics of a trained network on the validation images.",
    "test": "Test a trained network, clean and corrupted.\nGive the files and keys of its 'fit'.",
    "predict": "Write what a trained network predicts for every test image.\nGive the files and keys of its 'fit'.",
}
_END = "chaosgate configs lists the shipped files,\nchaosgate {} --help all lists every key."
KEYS = {
    "which files": {
        "-c FILE": "a file, or a shipped name; later ones win",
        "--print_config": "show the whole configuration, and stop",
    },
    "network": {
        "--model.backbone NAME": "of timm, or resnet10_small, resnet18_small",
        "--model.weights FILE": "start from a .safetensors, .pth or .ckpt",
        "--model.optimizer.init_args.lr 0.1": "learning rate",
        "--model.loss FocalLoss": "another loss",
    },
    "images": {
        "--data.root FOLDER": "where they are",
        "--data.image_size 224": "side in pixels that the network sees",
        "--data.batch_size 64": "images per process and step",
        "--data.num_workers 4": "processes that prepare batches",
        "--data.corruptions paper": "test: paper, all, [fog, contrast] or null",
        "--data.severities [1,3,5]": "of the corruptions",
    },
    "noise": {
        "--noise.gate.init_args.log_std 0.5": "strength of Gaussian Chaos (noise/gch)",
        "--noise.stages [L3,L4]": "where; see 'chaosgate sites NETWORK'",
        "--noise.monte_carlo 8": "test, predict: mean of 8 noised passes",
    },
    "run": {
        "--trainer.max_epochs 30": "length",
        "--trainer.devices 2": "processes or GPUs; with -c trainer/ddp",
        "--seed_everything 1": "seed of everything",
        "--run_dir FOLDER": "where the run is kept (runs/NAME)",
        "--resume": "fit: continue an interrupted run",
        "--checkpoints best,last": "test: which networks of the run (best)",
        "--output FILE.csv": "predict: where to write; .csv or .parquet",
    },
}
"""The keys that people use, by subject; each exists in the parser."""


def short_help(command: str) -> str:
    """A screen of 80 columns that says how to use the command; ``--help all`` has every key."""
    lines = [f"usage: chaosgate {command} -c FILE [-c FILE ...] [--KEY VALUE ...]", "", _TITLES[command], ""]
    lines += [f"  chaosgate {command} -c base -c data/fashion_mnist -c noise/gch", ""]
    width = max(len(key) for keys in KEYS.values() for key in keys)
    for subject, keys in KEYS.items():
        lines += [f"{subject}:", *(f"  {key:{width}}  {text}" for key, text in keys.items())]
    return "\n".join([*lines, "", _END.format(command), ""])


def asks_for_short_help(words: Sequence[str]) -> bool:
    """Whether a command line asks for help, and not for all of it."""
    asked = [i for i, word in enumerate(words) if word in ("-h", "--help")]
    return bool(asked) and words[asked[0] + 1 : asked[0] + 2] != ["all"]


def closing_lines(run: RunDirectory, words: Sequence[str], logs: Iterable[str] = ()) -> str:
    """Where everything is, the lines of loggers included, and what to do next with the same files and keys."""
    same = [word for word in words[1:] if word.split("=")[0] != "--resume"] + allow_flags()
    lines = ["", f"Run:         {run.path}   (config.yaml, curves.jsonl, figures/)"]
    lines.append(f"Network:     {run.checkpoints / 'best.ckpt'}   (smallest validation NLL; also top1.ckpt, last.ckpt)")
    lines += [*logs, "", "Next:"]
    lines += [f"  {shlex.join(['chaosgate', command, *same])}" for command in ("test", "predict")]
    return "\n".join([*lines, f"  {shlex.join(['chaosgate', 'probe', str(run.path)])}"])

"""``chaosgate fit|validate|test|predict``: LightningCLI with the key ``noise`` and run directories.

:class:`TrainingCLI` parses (:func:`training_parser`), chooses the run directory and the checkpoint
(:meth:`~TrainingCLI.before_instantiate_classes`), builds the trainer, and runs one command. Studies
call :func:`compose` and :func:`execute`.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from chaosgate.cli.config_files import ConfigFile, check, restrict, suggestion
from chaosgate.inject.callback import NoiseInjection
from chaosgate.run.checkpoint import AtomicCheckpointIO, KeepCheckpoints
from chaosgate.run.files import RunDirectory, UsageError, allowed_modules, replace_file
from chaosgate.run.identity import check_resume, noises, run_name, training_hash
from chaosgate.train import backbones
from chaosgate.train.task import ImageClassifier

_LIMITS = tuple(f"limit_{part}_batches" for part in ("train", "val", "test", "predict"))


@dataclass
class Options:
    """The keys beside trainer, model, data, noise and saving.

    Args:
        run_dir: Directory of the run (runs/NAME; NAME follows from the settings).
        ckpt_path: A checkpoint: fit continues from it, others load its weights.
        labels: Entries for every result row, e.g. study, method.
        temperature: test: also compute metrics after temperature scaling.
        outputs: test: name for saving confidence, correctness and NLL of every image.
        logits: test, with --outputs: also save the logits in half precision.
    """

    run_dir: str | None = None
    ckpt_path: str | None = None
    labels: dict[str, str] | None = None
    temperature: bool = True
    outputs: str | None = None
    logits: bool = False


class Parser(LightningArgumentParser):
    """LightningCLI's parser; an error is an exception, with a suggestion for a key or a name."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # jsonargparse tries the members of a union
            super().error(message, ex)
        if "Did you mean" not in message:  # of a file within a file
            message = f"{message}\n{suggestion(message, self)}".rstrip()
        raise UsageError(message) from ex


def training_parser(command: str = "fit") -> LightningArgumentParser:
    """All keys of a training."""
    parser = Parser(prog=f"chaosgate {command}", allow_abbrev=False)
    parser.add_argument("-c", "--config", action=ConfigFile, help="A file, or a shipped name.")
    parser.add_argument("--seed_everything", type=int, default=0, help="Seed of everything.")
    decided_here = {"barebones", "default_root_dir", "model_registry"}
    as_lightning = {"instantiate": False, "fail_untyped": False, "sub_configs": True}
    parser.add_class_arguments(Trainer, "trainer", skip={*_LIMITS, *decided_here}, **as_lightning)
    for key in _LIMITS:
        # 1 is one batch, 1.0 all of them. Python keeps one object for Union[int, float] and
        # Union[float, int], the one of the first import: Lightning's may turn 1 into 1.0.
        parser.add_argument(f"--trainer.{key}", type=int | float | None, default=None)
    parser.add_lightning_class_args(ImageClassifier, "model")
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    parser.add_lightning_class_args(NoiseInjection, "noise")
    parser.add_lightning_class_args(KeepCheckpoints, "saving")
    parser.add_optimizer_args()
    parser.add_lr_scheduler_args()
    parser.add_class_arguments(Options, as_group=False)
    resume = "fit: continue the run in its directory from checkpoints/last.ckpt."
    flag: dict[str, Any] = {"nargs": "?", "const": True, "default": False}
    parser.add_argument("--resume", type=bool, help=resume, **flag)
    parser.link_arguments("seed_everything", "data.init_args.seed")
    parser.link_arguments("data", "model.data", apply_on="instantiate")
    return parser


def parsed_config(parser: LightningArgumentParser, given: list[str] | dict[str, Any]) -> Namespace:
    """The parsed configuration, which may name only what is allowed."""
    restrict()
    parse: Any = parser.parse_object if isinstance(given, dict) else parser.parse_args
    config: Namespace = parse(given)
    for key in ("optimizer", "lr_scheduler"):  # LightningCLI's shorthand
        if config.get(key):
            config.model[key], config[key] = config[key], None
    check(plain_config(config))
    return config


def plain_config(config: Namespace) -> dict[str, Any]:
    """A parsed configuration as plain data, without the files that it came from."""
    return {key: value for key, value in config.as_dict().items() if key != "config"}


class TrainingCLI(LightningCLI):
    """LightningCLI for one command, which :meth:`run` carries out.

    Args:
        command: fit, validate, test or predict.
        given: The rest of the command line, or a composed configuration.
    """

    def __init__(self, command: str, given: list[str] | dict[str, Any]) -> None:
        self.command = command
        self.rows: list[dict[str, Any]] = []  # what a test has written
        super().__init__(ImageClassifier, save_config_callback=None, args=given, run=False)

    def setup_parser(self, *unused: Any) -> None:
        self.parser = training_parser(self.command)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Without Lightning's way to take hyper-parameters from a checkpoint."""
        self.config = parsed_config(parser, args)
        self.plain = plain_config(self.config)

    def before_instantiate_classes(self) -> None:
        """Choose the run directory and the checkpoint; nothing is written yet."""
        config = self.config
        self.run_directory = run = RunDirectory(
            config.run_dir or Path("runs", run_name(self.plain))
        )
        self.checkpoint = self._starts_from()
        saved = config.clone()
        saved.resume, saved.ckpt_path = False, None  # how it starts, not what it is
        self.saved_config = self.parser.dump(saved, skip_unset=False)
        self.content = backbones.read_checkpoint(self.checkpoint) if self.checkpoint else {}
        if self.command != "fit":
            known = backbones.network_arguments(self.content)
            for key in ("num_classes", "in_chans"):
                config.model[key] = config.model[key] or known.get(key)
        for logger in _listed(config.trainer.logger):
            if isinstance(logger, Namespace):  # a relative folder is inside of the run directory
                logger.init_args.save_dir = str(run.path / (logger.init_args.get("save_dir") or ""))

    def _starts_from(self) -> Path | None:
        """The checkpoint to continue or to load; None for a new training or given weights."""
        config, run = self.config, self.run_directory
        if config.ckpt_path is not None:
            return Path(config.ckpt_path)
        found = any(run.checkpoints.glob("*.ckpt"))
        if self.command != "fit":
            return None if config.model.weights is not None and not found else run.selected()
        requeued = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"  # the same command again
        if requeued and any(run.path.glob("hpc_ckpt_*.ckpt")):
            return None  # Lightning finds what it has saved
        if config.resume or (requeued and found):
            last = run.selected("last")
            check_resume(run, self.plain)
            return last
        if (found or run.results.exists()) and not config.trainer.fast_dev_run:
            raise FileExistsError(
                f"{run.path} already holds a run. Continue it with --resume, or give another "
                "--run_dir."
            )
        return None

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the callbacks that record, the logger, and checkpoints without pickle."""
        trainer, path = self.config_init.trainer, self.run_directory.path
        callbacks = _listed(trainer.callbacks)
        if not trainer.fast_dev_run:
            callbacks = [*callbacks, *self._recorders()]
            if trainer.logger in (None, True):
                kwargs["logger"] = TensorBoardLogger(path, "", "", default_hp_metric=False)
            if trainer.logger is not False:
                callbacks.append(LearningRateMonitor("step"))
        sync = [backbones.SyncBatchNorm()] if trainer.sync_batchnorm else []
        kwargs["plugins"] = [*_listed(trainer.plugins), AtomicCheckpointIO(), *sync]
        return super().instantiate_trainer(callbacks=callbacks, default_root_dir=path, **kwargs)

    def _recorders(self) -> list[Callback]:
        config = self.config
        if self.command not in ("test", "predict"):
            return []
        from chaosgate.run.rows import RecordTest, WritePredictions  # not needed for fit

        if self.command == "predict":
            return [WritePredictions()]
        noise = next(iter(noises(self.plain)), self.plain["noise"])
        origin = {
            **(config.labels or {}),
            "run": self.run_directory.path.name,
            "seed": config.seed_everything,
            "config_hash": training_hash(self.plain),
            "noise": noise,
            "monte_carlo": noise["monte_carlo"],
        }
        test = RecordTest(origin, config.temperature, config.outputs, config.logits)
        self.rows = test.written
        return [test]

    def run(self) -> None:
        """Carry out the command; a fit that fails before its first step leaves no directory."""
        model, trainer, run, file = self.model, self.trainer, self.run_directory, self.checkpoint
        if file is not None:
            weights = backbones.network_weights(self.content)
            backbones.require_fit(model.model, weights, file, model.backbone)
        given: dict[str, Any] = {"ckpt_path": file, "weights_only": True}
        if self.command == "predict":
            given["return_predictions"] = False
        trial, new = self.config.trainer.fast_dev_run, not run.path.exists()
        writes = self.command == "fit" and trainer.is_global_zero and not trial
        try:
            with run.locked() if writes else nullcontext():
                if writes:
                    replace_file(run.config, self.saved_config)
                getattr(trainer, self.command)(model, self.datamodule, **given)
        except BaseException:
            if writes and new and trainer.global_step == 0:
                shutil.rmtree(run.path, ignore_errors=True)
            raise
        if writes:
            for one in trainer.early_stopping_callbacks:
                if one.stopping_reason_message:
                    print(f"Stopped early: {one.stopping_reason_message}")
            print(f"\nRun:      {run.path}   (config.yaml, curves.jsonl, logs)")
            print(f"Network:  {run.selected()}   (smallest validation NLL; also top1, last)")
            allowed = [f"--allow={name}" for name in allowed_modules()]
            print("Next:     chaosgate test", shlex.join(["-c", str(run.config), *allowed]))
        if self.rows:
            from chaosgate.run.rows import print_results

            print_results(self.rows, run.results)


@cache
def _parser() -> LightningArgumentParser:
    return training_parser()


def compose(words: Sequence[str]) -> dict[str, Any]:
    """The configuration of a command line as plain data with all defaults; nothing is built.

    A mistake raises a ValueError with the message of the command. The first call takes about a
    second.

    Args:
        words: As after ``chaosgate fit``: files and keys.
    """
    plain = plain_config(parsed_config(_parser(), list(words)))
    composed: dict[str, Any] = json.loads(json.dumps(plain, default=str))
    return composed


def execute(command: str, config: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """Carry out a command in this process, for a program that continues afterwards.

    Lightning starts further processes by repeating ``sys.argv``, and leaves their addresses in the
    environment; both are restored.

    Args:
        command: fit, validate, test or predict.
        config: What :func:`compose` returns.
        options: Top-level keys that replace those of ``config``, e.g. ``resume=True``.

    Returns:
        The rows that a test has written.
    """
    given = json.dumps({**config, **options})  # parsing changes what it is given
    argv, environment = sys.argv, dict(os.environ)
    program = Path(__file__).parents[1] / "__main__.py"
    sys.argv = [str(program), command, "-c", given]
    try:
        cli = TrainingCLI(command, json.loads(given))
        cli.run()
        return cli.rows
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


def main(arguments: Sequence[str]) -> int:
    """Run a command in this process; return its exit status."""
    try:
        TrainingCLI(arguments[0], list(arguments[1:])).run()
    except SIGTERMException:
        print("chaosgate: stopped by SIGTERM; --resume continues.", file=sys.stderr)
        return 143
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error
    return 0


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]

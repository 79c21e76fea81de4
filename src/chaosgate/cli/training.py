"""``chaosgate fit|validate|test|predict``: LightningCLI with the key ``noise`` and run
directories.
"""

import json
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch.distributed as dist
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from chaosgate.cli.allowed import check, restrict
from chaosgate.cli.config_files import ConfigFile, Parser, UsageError
from chaosgate.inject.callback import NoiseInjection
from chaosgate.run.checkpoint import AtomicCheckpointIO, KeepCheckpoints
from chaosgate.run.config_files import allow_flags
from chaosgate.run.directory import RunDirectory, replace_file
from chaosgate.run.identity import check_resume, noises, readable_name, run_name, training_hash
from chaosgate.run.recording import RecordTraining, WritePredictions
from chaosgate.train.backbones import (
    SyncBatchNorm,
    network_arguments,
    network_weights,
    read_checkpoint,
    require_fit,
)
from chaosgate.train.task import ImageClassifier

_LIMITS = tuple(f"limit_{part}_batches" for part in ("train", "val", "test", "predict"))
_FIXED = ("barebones", "default_root_dir", "model_registry")  # of the trainer, decided here
_EXPECTED = (ValueError, OSError, RuntimeError, TypeError, ImportError, MisconfigurationException)


@dataclass
class Options:
    """The keys beside trainer, model, data, noise and saving.

    Args:
        run_dir: Directory of the run (runs/NAME; NAME follows from the settings).
        ckpt_path: A checkpoint: fit continues from it, others load its weights.
        labels: Copied into every result row, e.g. study, method.
        temperature: test: also the metrics of logits scaled by a fitted temperature.
        outputs: test: keep confidence, correctness, NLL of images under this name.
        logits: test, with --outputs: also keep the logits, in half precision.
        ood: test: images of other classes; only confidence is measured.
        output: predict: the .csv file (predictions.csv of the run).
    """

    run_dir: str | None = None
    ckpt_path: str | None = None
    labels: dict[str, str] | None = None
    temperature: bool = True
    outputs: str | None = None
    logits: bool = False
    ood: bool = False
    output: str | None = None


class TrainingCLI(LightningCLI):
    """LightningCLI for one command, which :meth:`run` carries out.

    Args:
        command: fit, validate, test or predict.
        given: The rest of the command line, or a composed configuration.
    """

    def __init__(self, command: str, given: list[str] | dict[str, Any]) -> None:
        self.command = command
        self.rows: list[dict[str, Any]] = []  # what a test has written
        super().__init__(
            model_class=ImageClassifier,
            datamodule_class=LightningDataModule,
            subclass_mode_data=True,
            save_config_callback=None,
            seed_everything_default=0,
            parser_kwargs={"prog": f"chaosgate {command}", "allow_abbrev": False},
            load_from_checkpoint_support=False,
            args=given,
            run=False,
        )

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        parser = Parser(**kwargs)
        parser.add_argument("-c", "--config", action=ConfigFile, help="A file, or a shipped name.")
        return parser

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """As LightningCLI, except for the limits: other libraries can turn Lightning's 1 into 1.0.

        ``Optional[Union[int, float]]`` and ``Optional[Union[float, int]]`` are one object, that of
        the first import; 1 is one batch, 1.0 all of them.
        """
        skip: set[str | int] = {*_LIMITS, *_FIXED}
        as_lightning = {"instantiate": False, "fail_untyped": False, "sub_configs": True}
        parser.add_class_arguments(Trainer, "trainer", skip=skip, **as_lightning)
        for key in _LIMITS:
            parser.add_argument(f"--trainer.{key}", type=int | float | None, default=None)
        parser.add_lightning_class_args(ImageClassifier, "model")
        parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(NoiseInjection, "noise")
        parser.add_lightning_class_args(KeepCheckpoints, "saving")
        parser.add_class_arguments(Options, as_group=False)
        resume = "fit: continue the run in its directory from checkpoints/last.ckpt."
        flag: dict[str, Any] = {"nargs": "?", "const": True, "default": False}
        parser.add_argument("--resume", type=bool, help=resume, **flag)
        parser.link_arguments("seed_everything", "data.init_args.seed")
        parser.link_arguments("data", "model.data", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parsed_config(parser, args)

    def before_instantiate_classes(self) -> None:
        """Choose the run directory and the checkpoint; nothing is written yet."""
        config, plain = self.config, plain_config(self.config)
        self.run_directory = run = RunDirectory(config.run_dir or Path("runs", run_name(plain)))
        self.checkpoint = self._starts_from(plain)
        saved = config.clone()
        saved.resume, saved.ckpt_path = False, None  # how it starts, not what it is
        self.saved_config = self.parser.dump(saved, skip_unset=False)
        if self.checkpoint is not None and self.command != "fit":
            known = network_arguments(read_checkpoint(self.checkpoint), self.checkpoint)
            for key in ("num_classes", "in_chans"):
                config.model[key] = config.model[key] or known.get(key)
        for logger in _listed(config.trainer.logger):
            if isinstance(logger, Namespace):  # a relative folder is inside of the run directory
                logger.init_args.save_dir = str(run.path / (logger.init_args.get("save_dir") or ""))

    def _starts_from(self, plain: dict[str, Any]) -> Path | None:
        """The checkpoint to continue or to load; None for a new training or given weights."""
        config, run, fit = self.config, self.run_directory, self.command == "fit"
        if config.ckpt_path is not None:
            return Path(config.ckpt_path)
        found = any(run.checkpoints.glob("*.ckpt"))
        requeued = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"  # the same command again
        if requeued and any(run.path.glob("hpc_ckpt_*.ckpt")):
            return None  # Lightning finds what it has saved
        if fit and not config.resume and not (requeued and found):
            if (found or run.results.exists()) and not config.trainer.fast_dev_run:
                raise FileExistsError(
                    f"{run.path} already holds a run. Continue it with --resume, or give another "
                    "--run_dir."
                )
            return None
        if found:
            if fit:
                check_resume(run, plain)
            return run.selected("last" if fit else "best")
        if config.model.weights is not None and not fit:
            return None
        alike = run.path.parent.glob(f"{readable_name(plain)}-*/")
        others = ", ".join(sorted(str(path) for path in alike if path != run.path))
        raise FileNotFoundError(
            f"nothing to {'resume' if fit else self.command}: {run.path} has no checkpoint. Train "
            "first (chaosgate fit), or give --run_dir or --ckpt_path."
            + (f" Runs with other settings: {others}." if others else "")
        )

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
        sync = [SyncBatchNorm()] if trainer.sync_batchnorm else []
        kwargs["plugins"] = [*_listed(trainer.plugins), AtomicCheckpointIO(), *sync]
        return super().instantiate_trainer(callbacks=callbacks, default_root_dir=path, **kwargs)

    def _recorders(self) -> list[Callback]:
        config, plain = self.config, plain_config(self.config)
        if self.command == "predict":
            return [RecordTraining(), WritePredictions(config.output)]
        if self.command != "test":
            return [RecordTraining()]
        from chaosgate.run.rows import RecordTest  # not needed for fit

        noise = next(iter(noises(plain)), plain["noise"])
        origin = {
            **(plain.get("labels") or {}),
            "run": self.run_directory.path.name,
            "seed": plain["seed_everything"],
            "config_hash": training_hash(plain),
            "noise": noise,
            "monte_carlo": noise["monte_carlo"],
        }
        known = [row for row in self.run_directory.rows() if row.get("noise") == noise]
        scaled = config.temperature and not config.ood
        test = RecordTest(origin, known, scaled, config.outputs, config.logits)
        self.rows = test.written
        return [RecordTraining(), test]

    def run(self) -> None:
        """Carry out the command."""
        self.model.ood = self.config.ood
        if self.checkpoint is not None:
            found = network_weights(read_checkpoint(self.checkpoint))
            require_fit(self.model.model, found, self.checkpoint, self.model.backbone)
        given: dict[str, Any] = {"ckpt_path": self.checkpoint, "weights_only": True}
        if self.command == "predict":
            given["return_predictions"] = False
        with self._directory():
            getattr(self.trainer, self.command)(self.model, self.datamodule, **given)
        if self.rows:
            from chaosgate.run.rows import print_results

            print_results(self.rows, self.run_directory.results)

    @contextmanager
    def _directory(self) -> Iterator[None]:
        """For fit: lock the directory, then print what is in it; remove it if no step was done."""
        trainer, run, new = self.trainer, self.run_directory, not self.run_directory.path.exists()
        trial = self.config.trainer.fast_dev_run
        if self.command != "fit" or trial or not trainer.is_global_zero:
            yield
            return
        try:
            with run.locked():
                replace_file(run.config, self.saved_config)
                yield
        except BaseException:
            if new and trainer.global_step == 0:
                shutil.rmtree(run.path, ignore_errors=True)
            raise
        for one in trainer.early_stopping_callbacks:
            if one.stopping_reason_message:
                print(f"Stopped early: {one.stopping_reason_message}")
        print(f"\nRun:      {run.path}   (config.yaml, curves.jsonl)")
        print(f"Network:  {run.selected()}   (smallest validation NLL; also top1, last)")
        for logger in filter(lambda logger: logger.log_dir, trainer.loggers):
            print(f"Log:      {logger.log_dir}")
        print("Next:     chaosgate test", shlex.join(["-c", str(run.config), *allow_flags()]))


class _ParserOnly(TrainingCLI):
    """Builds the parser; parses and instantiates nothing."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = Namespace(seed_everything=False)  # type: ignore[no-untyped-call]

    def before_instantiate_classes(self) -> None:
        pass

    def instantiate_classes(self) -> None:
        pass


@cache
def _parser() -> LightningArgumentParser:
    return _ParserOnly("fit", []).parser


def parsed_config(parser: LightningArgumentParser, given: list[str] | dict[str, Any]) -> Namespace:
    """The parsed configuration, which may name only what is allowed."""
    restrict()
    config: Namespace = (
        parser.parse_object(given) if isinstance(given, dict) else parser.parse_args(given)
    )
    for key in ("optimizer", "lr_scheduler"):  # LightningCLI's shorthand
        if config.get(key):
            config.model[key], config[key] = config[key], None
    check(plain_config(config))
    return config


def plain_config(config: Namespace) -> dict[str, Any]:
    """A parsed configuration as plain data, without the files that it came from."""
    return {key: value for key, value in config.as_dict().items() if key != "config"}


def compose(words: Sequence[str]) -> dict[str, Any]:
    """The configuration of a command line as plain data with all defaults; nothing is built.

    What the command would refuse raises a ValueError with the same message. The first call makes
    the parser (about a second).

    Args:
        words: As after ``chaosgate fit``: files and keys.
    """
    plain = plain_config(parsed_config(_parser(), list(words)))
    composed: dict[str, Any] = json.loads(json.dumps(plain, default=str))
    return composed


def execute(command: str, config: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """Carry out a command in this process, for a program that continues afterwards.

    Lightning starts further processes by repeating ``sys.argv``, and leaves their addresses in the
    environment, where the next command would look for them.

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
        return 0
    except SIGTERMException:
        status, message = 143, "stopped by SIGTERM. Continue with the same command and --resume."
    except SystemExit as stop:
        if not isinstance(stop.__context__, KeyboardInterrupt):  # Lightning exits after Ctrl-C
            return int(stop.code or 0)
        status, message = 130, "stopped by Ctrl-C. Continue with the same command and --resume."
    except UsageError as error:
        status, message = 2, str(error)
    except _EXPECTED as error:
        status, message = 1, str(error)
        if os.environ.get("CHAOSGATE_TRACEBACK"):
            traceback.print_exc()
    print(f"chaosgate: {message}", file=sys.stderr)
    return status


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]

"""``chaosgate fit|validate|test|predict``: LightningCLI with the key ``noise`` and run directories."""

import json
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ProgressBar, RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from chaosgate.cli.allowed import check, restrict
from chaosgate.cli.config_files import ConfigFile, Parser, UsageError
from chaosgate.data.atomic import replace_file
from chaosgate.inject.callback import NoiseInjection
from chaosgate.run.checkpoint import AtomicCheckpointIO, KeepCheckpoints, StopAtNonFiniteLoss
from chaosgate.run.config_files import allow_flags
from chaosgate.run.directory import BEST, ROLES, RunDirectory
from chaosgate.run.identity import check_resume, noises, readable_name, run_name, training_hash
from chaosgate.run.predictions import WritePredictions
from chaosgate.run.recording import (
    KeepOutputs,
    WriteCurves,
    WriteFigures,
    WriteNoise,
    WriteProgress,
)
from chaosgate.run.rows import WriteResults
from chaosgate.run.temperature import TemperatureScaling
from chaosgate.train.backbones import SyncBatchNorm
from chaosgate.train.task import ImageClassifier
from chaosgate.train.weights import network_arguments, network_weights, read_checkpoint, require_fit

_LIMITS = tuple(f"limit_{part}_batches" for part in ("train", "val", "test", "predict"))
_FIXED = ("barebones", "default_root_dir", "model_registry")  # of the trainer, decided here
_TEXT = str | None
_KEYS: dict[str, tuple[Any, Any, str]] = {
    "run_dir": (_TEXT, None, "Directory of the run (runs/NAME; NAME follows from the settings)."),
    "ckpt_path": (_TEXT, None, "A checkpoint: fit continues from it, others load its weights."),
    "resume": (bool, False, "fit: continue the run in its directory from checkpoints/last.ckpt."),
    "checkpoints": (_TEXT, None, "test: networks of the run, such as best,last (best); also top1."),
    "labels": (dict[str, str] | None, None, "Copied into every result row, e.g. study, method."),
    "temperature": (bool, True, "test: also the metrics of logits scaled by a fitted temperature."),
    "outputs": (_TEXT, None, "test: keep confidence, correctness, NLL of images under this name."),
    "logits": (bool, False, "test, with --outputs: also keep the logits, in half precision."),
    "ood": (bool, False, "test: images of other classes; only confidence is measured."),
    "output": (_TEXT, None, "predict: a .csv or .parquet file (predictions.csv of the run)."),
}
"""Type, default and help of the keys beside trainer, model, data, noise and saving."""


_EXPECTED = (ValueError, OSError, RuntimeError, TypeError, ImportError, MisconfigurationException)


class SaveConfig(SaveConfigCallback):
    """Write the configuration as it was given to ``config.yaml`` of the run directory."""

    def __init__(
        self, parser: LightningArgumentParser, config: Namespace, given: Namespace
    ) -> None:
        super().__init__(parser, given, save_to_log_dir=False)

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        config = self.config.clone()
        config.resume = False
        replace_file(RunDirectory.of(trainer).config, self.parser.dump(config, skip_unset=False))


class TrainingCLI(LightningCLI):
    """LightningCLI for one command, which :meth:`run` carries out.

    Args:
        command: fit, validate, test or predict.
        arguments: The rest of the command line, or a composed configuration.
    """

    def __init__(self, command: str, arguments: Sequence[str] | dict[str, Any]) -> None:
        self.command, self.arguments = command, arguments
        self.results: WriteResults | None = None
        super().__init__(
            model_class=ImageClassifier,
            datamodule_class=LightningDataModule,
            subclass_mode_data=True,
            save_config_callback=SaveConfig if command == "fit" else None,
            seed_everything_default=0,
            parser_kwargs={"prog": f"chaosgate {command}", "allow_abbrev": False},
            load_from_checkpoint_support=False,
            args=arguments if isinstance(arguments, dict) else list(arguments),
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
        for key, (kind, default, text) in _KEYS.items():
            flag: dict[str, Any] = {"nargs": "?", "const": True} if key == "resume" else {}
            parser.add_argument(f"--{key}", type=kind, default=default, help=text, **flag)
        parser.link_arguments("seed_everything", "data.init_args.seed")
        parser.link_arguments("data", "model.data", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parsed_config(parser, args)

    def before_instantiate_classes(self) -> None:
        """Choose the run directory and the checkpoints; nothing is written yet."""
        config, plain = self.config, plain_config(self.config)
        self.save_config_kwargs = {"given": config.clone()}
        self.run_directory = RunDirectory(config.run_dir or Path("runs", run_name(plain)))
        self.networks = self._start(plain) if self.command == "fit" else self._tested(plain)
        if self.networks and self.command != "fit":
            known = network_arguments(read_checkpoint(self.networks[0]), self.networks[0])
            for key in ("num_classes", "in_chans"):
                config.model[key] = config.model[key] or known.get(key)
        for logger in _listed(config.trainer.logger):
            if isinstance(logger, Namespace):  # a relative folder is inside of the run directory
                inside = self.run_directory.path / (logger.init_args.get("save_dir") or "")
                logger.init_args.save_dir = str(inside)

    def _start(self, plain: dict[str, Any]) -> list[Path]:
        """The checkpoint that a training continues from."""
        config, run = self.config, self.run_directory
        if config.ckpt_path is not None:
            return [Path(config.ckpt_path)]
        if config.resume:
            if not run.last.is_file():
                raise FileNotFoundError(f"nothing to resume: no {run.last}.{_others(run, plain)}")
            check_resume(run, plain)
            return [run.last]
        requeued = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
        if not requeued and not config.trainer.fast_dev_run:
            run.check_free()
        return []

    def _tested(self, plain: dict[str, Any]) -> list[Path]:
        """The checkpoints to load; none if the model starts from given weights."""
        config, run = self.config, self.run_directory
        if config.ckpt_path is not None:
            return [Path(config.ckpt_path)]
        if config.checkpoints is None:
            if config.model.weights is not None and not any(run.checkpoints.glob("*.ckpt")):
                return []
            if not run.path.is_dir() and (others := _others(run, plain)):
                raise FileNotFoundError(f"no run {run.path}.{others}")
        roles = (config.checkpoints or BEST.removesuffix(".ckpt")).split(",")
        if unknown := set(roles).difference(ROLES):
            raise ValueError(f"--checkpoints has {unknown}; give some of {', '.join(ROLES)}.")
        return [run.selected(role) for role in roles]

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the callbacks that record, the logger, and checkpoints without pickle."""
        trainer = self.config_init.trainer
        callbacks = list(_listed(trainer.callbacks))
        if not trainer.fast_dev_run:
            callbacks += self._recorders()
            default = trainer.logger in (None, True)
            loggers = [self._tensorboard()] if default else [*filter(None, _listed(trainer.logger))]
            kwargs["logger"] = loggers or False
            callbacks += [LearningRateMonitor("step")] if loggers else []
        bars = [one for one in callbacks if isinstance(one, ProgressBar)]
        if trainer.enable_progress_bar is not False and not bars:
            callbacks.append(RichProgressBar(refresh_rate=10))
        sync = [SyncBatchNorm()] if trainer.sync_batchnorm else []
        kwargs["plugins"] = [*_listed(trainer.plugins), AtomicCheckpointIO(), *sync]
        kwargs["default_root_dir"] = str(self.run_directory.path)
        return super().instantiate_trainer(callbacks=callbacks, **kwargs)

    def _recorders(self) -> list[Callback]:
        config, recorders = self.config, [WriteProgress(), WriteCurves(), WriteFigures()]
        if self.command == "fit":
            return [*recorders, StopAtNonFiniteLoss(), WriteNoise()]
        if self.command == "predict":
            return [*recorders, WritePredictions(config.output)]
        if self.command == "validate":
            return [*recorders]
        plain = plain_config(config)
        noise = next(iter(noises(plain)), plain["noise"])
        known = [row for row in self.run_directory.rows() if row.get("noise") == noise]
        provenance = {
            **(plain.get("labels") or {}),
            "run": self.run_directory.path.name,
            "seed": plain["seed_everything"],
            "config_hash": training_hash(plain),
            "noise": noise,
            "monte_carlo": noise["monte_carlo"],
        }
        self.results = WriteResults(provenance)
        outputs = [KeepOutputs(config.outputs, config.logits)] if config.outputs is not None else []
        scaling = [TemperatureScaling(known)] if config.temperature and not config.ood else []
        return [*recorders, *outputs, *scaling, self.results]

    def _tensorboard(self) -> TensorBoardLogger:
        """The default logger; values that a resumed run logged after its checkpoint are dropped."""
        resumed = self.networks if self.command == "fit" else []
        step = int(read_checkpoint(resumed[0]).get("global_step", 0)) if resumed else None
        place: dict[str, Any] = {
            "save_dir": str(self.run_directory.path),
            "name": "",
            "version": "",
        }
        return TensorBoardLogger(**place, default_hp_metric=False, purge_step=step)

    def run(self) -> None:
        """Carry out the command."""
        self.model.ood = self.config.ood
        for path in self.networks:
            found = network_weights(read_checkpoint(path))
            require_fit(self.model.model, found, path, self.model.backbone)
        method = partial(getattr(self.trainer, self.command), self.model, weights_only=True)
        if self.command == "fit":
            start = self.networks[0] if self.networks else None
            with self._locked():
                method(datamodule=self.datamodule, ckpt_path=start)
            self._print_summary()
            return
        more = {"return_predictions": False} if self.command == "predict" else {}
        for network in self.networks or (None,):
            method(datamodule=self.datamodule, ckpt_path=network, **more)
            if self.results is not None:
                self.results.show()
        for one in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(one, WritePredictions) and one.said:
                print(one.said)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the run directory; remove a new directory if no step was trained."""
        run, new = self.run_directory, not self.run_directory.path.exists()
        if self.config.trainer.fast_dev_run or not self.trainer.is_global_zero:
            yield
            return
        try:
            with run.locked():
                yield
        except BaseException:
            if new and self.trainer.global_step == 0:
                shutil.rmtree(run.path, ignore_errors=True)
            raise

    def _print_summary(self) -> None:
        """Why training stopped early, its files, and the next commands; studies print their own."""
        run, config = self.run_directory, self.config
        if not self.trainer.is_global_zero or config.trainer.fast_dev_run or config.labels:
            return
        for one in self.trainer.early_stopping_callbacks:
            if one.stopping_reason_message:
                print(f"Stopped early: {one.stopping_reason_message}")
        logs = [str(one.log_dir) for one in self.trainer.loggers if one.log_dir is not None]
        print(f"\nRun:      {run.path}   (config.yaml, curves.jsonl, figures/)")
        print(f"Network:  {run.checkpoints / BEST}   (smallest validation NLL; also top1, last)")
        print(*(f"Log:      {log}\n" for log in logs), "\nNext:", sep="")
        words = self.arguments if isinstance(self.arguments, list | tuple) else ()
        same = [word for word in words if word.split("=")[0] != "--resume"] + allow_flags()
        for command in ("test", "predict"):
            print(f"  {shlex.join(['chaosgate', command, *same])}")


class ParserOnly(TrainingCLI):
    """Builds the parser; parses and instantiates nothing."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = Namespace(seed_everything=False)  # type: ignore[no-untyped-call]

    def before_instantiate_classes(self) -> None:
        pass

    def instantiate_classes(self) -> None:
        pass


def parsed_config(
    parser: LightningArgumentParser, args: Sequence[str] | dict[str, Any]
) -> Namespace:
    """The parsed configuration with one place for each setting: ``noise``, ``model.optimizer``."""
    restrict()
    config: Namespace
    config = parser.parse_object(args) if isinstance(args, dict) else parser.parse_args(list(args))
    for key in ("optimizer", "lr_scheduler"):  # LightningCLI's shorthand
        if config.get(key):
            config.model[key], config[key] = config[key], None
    callbacks = _listed(config.trainer.callbacks)
    noise = [one for one in callbacks if one.class_path.endswith("NoiseInjection")]
    if noise and config.noise.gate is not None:
        raise UsageError(
            "noise.gate is set, and trainer.callbacks has a NoiseInjection. Keep one of them."
        )
    if len(noise) == 1:
        config.noise = noise[0].init_args
        config.trainer.callbacks = [one for one in callbacks if one is not noise[0]] or None
    check(plain_config(config))
    return config


def plain_config(config: Namespace) -> dict[str, Any]:
    """A parsed configuration as plain data, without the files that it came from."""
    return {key: value for key, value in config.as_dict().items() if key != "config"}


@cache
def _parser() -> LightningArgumentParser:
    return ParserOnly("fit", ()).parser


def compose(words: Sequence[str]) -> dict[str, Any]:
    """The configuration of a command line as plain data with all defaults; nothing is built.

    What the command would refuse raises a ValueError with the same message. The first call makes the
    parser (about a second).

    Args:
        words: As after ``chaosgate fit``: files and keys.
    """
    plain = plain_config(parsed_config(_parser(), words))
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
    import torch.distributed as dist

    import chaosgate.__main__ as program

    given = {**config, **options}
    argv, environment = sys.argv, dict(os.environ)
    sys.argv = [str(program.__file__), command, "-c", json.dumps(given)]
    try:
        cli = TrainingCLI(command, given)
        cli.run()
        return [] if cli.results is None else cli.results.written
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _others(run: RunDirectory, config: dict[str, Any]) -> str:
    """Runs beside the missing one with the same backbone, data, noise and seed."""
    alike = run.path.parent.glob(f"{readable_name(config)}-*/")
    found = ", ".join(sorted(str(path) for path in alike if path != run.path))
    return f" Runs with other settings: {found}; give --run_dir for one of them." if found else ""


def main(arguments: Sequence[str]) -> int:
    """Run a command in this process; return its exit status."""
    return run(arguments)[0]


def run(arguments: Sequence[str]) -> tuple[int, list[dict[str, Any]]]:
    """The exit status of a command, and the rows that a test has written."""
    try:
        cli = TrainingCLI(arguments[0], arguments[1:])
        cli.run()
        return 0, [] if cli.results is None else cli.results.written
    except SIGTERMException:
        status, message = 143, "stopped by SIGTERM. Continue with the same command and --resume."
    except SystemExit as stop:
        if not isinstance(stop.__context__, KeyboardInterrupt):  # Lightning exits after Ctrl-C
            return int(stop.code or 0), []
        status, message = 130, "stopped by Ctrl-C. Continue with the same command and --resume."
    except UsageError as error:
        status, message = 2, str(error)
    except _EXPECTED as error:
        status, message = 1, str(error)
        if os.environ.get("CHAOSGATE_TRACEBACK"):
            traceback.print_exc()
    print(f"chaosgate: {message}", file=sys.stderr)
    return status, []

"""LightningCLI with a noise key, run directories and rows: what ``fit``, ``validate``, ``test``, ``predict`` build."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ProgressBar, RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger

from chaosgate.cli.training.help import closing_lines
from chaosgate.cli.training.parser import require_allowed
from chaosgate.cli.training.processes import check_run
from chaosgate.inject.callback import NoiseInjection
from chaosgate.run.checkpoint import AtomicCheckpointIO, KeepCheckpoints, StopAtNonFiniteLoss
from chaosgate.run.checkpoint.stopping import telling_what_is_left
from chaosgate.run.directory import BEST, ROLES, RunDirectory
from chaosgate.run.identity import changed_settings, check_resume, history_line, run_name, runs_alike, training_hash
from chaosgate.run.predictions import WritePredictions, check_output
from chaosgate.run.recording import KeepOutputs, WriteCurves, WriteFigures, WriteNoise, WriteProgress
from chaosgate.run.rows import WriteResults
from chaosgate.run.temperature import TemperatureScaling
from chaosgate.train.backbones import SyncBatchNorm
from chaosgate.train.weights import network_arguments, network_weights, read_checkpoint, require_fit

_PARSERS: dict[str, Any] = {}  # what the first command of this process made of them
_PICTURES = 10  # of the progress bar in a second; Lightning lets it draw a hundred, beside the training
_KEYS: dict[str, tuple[Any, Any, str]] = {
    "run_dir": (
        str | None,
        None,
        "Directory of this run. Default: runs/ and a name made from all settings that shape the training, so that "
        "'test' with the same files and keys finds what 'fit' wrote.",
    ),
    "resume": (
        bool,
        False,
        "fit: continue the run in its directory exactly where it was interrupted; without a checkpoint, start it.",
    ),
    "checkpoints": (
        str | None,
        None,
        "test: which of the run's networks, e.g. best,last. best: smallest validation NLL (the default); top1: best "
        "validation Top-1; last: final epoch. Or give any file with --ckpt_path.",
    ),
    "labels": (dict[str, str] | None, None, "Copied into every result row, e.g. study, method."),
    "temperature": (
        bool,
        True,
        "test: fit a temperature on the validation images, and add the metrics of the scaled logits (+T).",
    ),
    "outputs": (
        str | None,
        None,
        "test: also keep confidence, correctness and NLL of every image, in outputs/ under this name.",
    ),
    "logits": (
        bool,
        False,
        "test, with --outputs: keep the logits of every test and validation image, too, in half precision.",
    ),
    "ood": (
        bool,
        False,
        "test: the images belong to none of the classes; labels are ignored, only confidence is measured.",
    ),
    "output": (
        str | None,
        None,
        "predict: where the predictions go, FILE.csv or FILE.parquet; predictions.csv in the run directory if not "
        "given.",
    ),
}
"""Type, default and help of the keys beside trainer, model, data, noise and saving."""


class ChaosgateCLI(LightningCLI):
    """LightningCLI plus ``noise:``, ``saving:``, ``run_dir``, ``resume``, ``checkpoints`` and ``labels``.

    Args:
        cleanup: Receives what must happen however the command ends.
        words: The command line as the user wrote it, for the hints at its end.
    """

    run: RunDirectory
    results: WriteResults | None = None

    def __init__(self, *args: Any, cleanup: ExitStack, words: Sequence[str] = (), **kwargs: Any) -> None:
        self._cleanup, self._words = cleanup, list(words)
        super().__init__(*args, **kwargs)

    def setup_parser(self, *args: Any) -> None:
        """Build the parsers once in a process: that takes longer than using them."""
        if not _PARSERS:
            before = set(vars(self))
            super().setup_parser(*args)
            _PARSERS.update({name: value for name, value in vars(self).items() if name not in before})
        vars(self).update(_PARSERS)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The keys beside trainer, model and data."""
        parser.add_lightning_class_args(NoiseInjection, "noise")
        parser.add_lightning_class_args(KeepCheckpoints, "saving")
        for key, (kind, default, text) in _KEYS.items():
            flag: dict[str, Any] = {"nargs": "?", "const": True} if key == "resume" else {}
            parser.add_argument(f"--{key}", type=kind, default=default, help=text, **flag)
        parser.link_arguments("seed_everything", "data.init_args.seed")
        parser.link_arguments("data", "model.data", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, then look at a given checkpoint before anybody else tries to load it.

        Lightning would let the hyper-parameters in the file replace what was asked for, functions to call included. The
        configuration decides: the file is out of sight until the model's arguments are settled.
        """
        super().parse_arguments(parser, args)
        plain = plain_config(self.config[self.config.subcommand])
        check_run(plain)
        require_allowed(plain)
        check_output(plain.get("output"))
        config = self.config[self.config.subcommand]
        self._ckpt_path, config.ckpt_path = config.ckpt_path, None
        if self._ckpt_path is not None:
            read_checkpoint(self._ckpt_path)

    def before_instantiate_classes(self) -> None:
        """Settle on the run directory and on the checkpoint, before anything is built."""
        config = self.config[self.config.subcommand]
        config.ckpt_path = self._ckpt_path
        self.run = RunDirectory(config.run_dir or Path("runs", run_name(plain_config(config))))
        root = config.trainer.default_root_dir
        if root is not None and Path(root).absolute() != self.run.path.absolute():
            raise ValueError(
                f"trainer.default_root_dir is {root}; here it is the run directory: give --run_dir {root}."
            )
        for logger in _listed(config.trainer.logger):
            if logger.get("class_path", "").endswith(".WandbLogger"):
                _require_wandb()
            if "save_dir" in (logger.get("init_args") or {}):
                logger.init_args.save_dir = str(self.run.path / (logger.init_args.save_dir or ""))
        if self.config.subcommand == "fit":
            if getattr(rank_zero_only, "rank", 0) == 0:
                self.run.claim(config.resume)
                self._cleanup.callback(self.run.release)
            self._cleanup.enter_context(telling_what_is_left(self.run))
            if config.resume:
                self._resume(config)
        else:
            self.save_config_callback = None
            self._networks = self._asked_networks(config)
            if self._networks:
                config.ckpt_path = str(self._networks.pop(0))

    def instantiate_classes(self) -> None:
        """Build data and model, the model for the images of the data; what is written down stays as it was asked."""
        self._asked, self.config = self.config, _completed(self.config)
        super().instantiate_classes()

    def _resume(self, config: Any) -> None:
        """Find the checkpoint to continue from; the settings must be those that the run began with."""
        if config.ckpt_path is None and (newest := self.run.resumable()) is not None:
            config.ckpt_path = str(newest)
        if config.ckpt_path is None and config.run_dir is None:
            for other in runs_alike(self.run, plain_config(config)):
                differs = changed_settings(other, plain_config(config))
                said = f"{self.run.path} starts from scratch; {other.path} is a run with other settings: {differs}."
                print(f"chaosgate: {said} To continue that one, give its settings.", file=sys.stderr)
        if config.ckpt_path is not None and (changes := check_resume(self.run, plain_config(config))):
            step = int(read_checkpoint(config.ckpt_path).get("global_step", 0))
            self.save_config_kwargs = {"history": history_line(step, changes)}
            print(f"chaosgate: continued with other values of {', '.join(changes)}", file=sys.stderr)

    def _asked_networks(self, config: Any) -> list[Path]:
        """The checkpoints to test, one after the other; none if the weights come from elsewhere."""
        if config.checkpoints is not None and config.ckpt_path is not None:
            raise ValueError("--checkpoints names networks of the run, --ckpt_path a file: give one of them.")
        if config.checkpoints is not None:
            roles = [role.strip() for role in config.checkpoints.split(",")]
            if unknown := [role for role in roles if role not in ROLES]:
                raise ValueError(
                    f"--checkpoints {config.checkpoints}: {unknown[0]!r} is not one of {', '.join(ROLES)}."
                )
            if self.config.subcommand != "test" and len(roles) > 1:
                raise ValueError(
                    f"--checkpoints {config.checkpoints}: only 'test' takes more than one; give one of them."
                )
            return [self.run.selected(role) for role in roles]
        begun_elsewhere = config.model.weights is not None
        trained = any(self.run.checkpoints.glob("*.ckpt"))  # the run's own network comes before what it began from
        if config.ckpt_path is not None or (begun_elsewhere and not trained):
            return []
        if (
            config.run_dir is None
            and not self.run.path.is_dir()
            and (others := _other_runs(self.run, plain_config(config)))
        ):
            raise FileNotFoundError(f"no run {self.run.path}.{others}")
        return [self.run.selected(BEST)]

    def after_test(self) -> None:
        """The table, when the progress bar is gone; then the further networks of ``--checkpoints``."""
        assert self.results is not None
        self.results.show()
        for path in self._networks:
            require_fit(self.model.model, network_weights(read_checkpoint(path)), path, self.model.backbone)
            self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=str(path), weights_only=True)
            self.results.show()

    def after_predict(self) -> None:
        """Say where the predictions are."""
        for one in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(one, WritePredictions) and one.said:
                print(one.said)

    def after_fit(self) -> None:
        """Say where everything is and what to do next; not in the log of a study, which says it for all its runs."""
        config = self.config[self.subcommand]
        if self.trainer.is_global_zero and not config.labels:
            print(closing_lines(self.run, self._words, self._logs()))

    def _logs(self) -> Iterator[str]:
        """Where loggers have written; wandb says it itself."""
        for one in self.trainer.loggers:
            if isinstance(one, TensorBoardLogger):
                yield f"TensorBoard: {shlex.join(['tensorboard', '--logdir', one.save_dir])}"
            elif one.log_dir is not None:
                yield f"Log:         {one.log_dir}"

    def after_instantiate_classes(self) -> None:
        """A checkpoint of another network is refused here, in one sentence."""
        config = self.config[self.config.subcommand]
        self.model.ood, path = config.ood, config.ckpt_path
        if path is not None:
            require_fit(self.model.model, network_weights(read_checkpoint(path)), path, self.model.backbone)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The trainer, with this library's callbacks and logger beside those of the configuration."""
        self.config = self._asked
        config = self.config_init[self.subcommand]
        callbacks = [*(config.trainer.callbacks or []), *self._recording()]
        kwargs["default_root_dir"] = str(self.run.path)  # where every callback writes, whatever the logger
        given = config.trainer.logger
        loggers = [self._tensorboard()] if given in (None, True) else given if isinstance(given, list) else [given]
        kwargs["logger"] = [*filter(None, loggers)] or False
        if given is not False:
            callbacks.append(LearningRateMonitor("step"))
        if config.trainer.enable_progress_bar is not False and not any(isinstance(c, ProgressBar) for c in callbacks):
            callbacks.append(RichProgressBar(refresh_rate=_PICTURES))
        plugins = config.trainer.plugins or []
        kwargs["plugins"] = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
        if config.trainer.sync_batchnorm:
            kwargs["plugins"].append(SyncBatchNorm())
        return super().instantiate_trainer(callbacks=callbacks, **kwargs)

    def _recording(self) -> list[Callback]:
        """What guards and records the run, in the order in which it must be called."""
        always: list[Callback] = [WriteProgress(), WriteCurves(), WriteFigures()]  # curves: in checkpoints
        if self.subcommand == "fit":
            return [*always, StopAtNonFiniteLoss(), WriteNoise()]
        if self.subcommand == "predict":
            return [*always, WritePredictions(self.config["predict"].output)]
        if self.subcommand != "test":
            return always
        config = self.config["test"]
        outputs = [KeepOutputs(config.outputs, config.logits)] if config.outputs is not None else []
        self.results = WriteResults(self._provenance())
        return [*always, *outputs, *self._temperature_scaling(), self.results]

    def _tensorboard(self) -> TensorBoardLogger:
        """The run's curves; what the run logged after its checkpoint before it was interrupted is replaced."""
        config = self.config_init[self.subcommand]
        purge: dict[str, Any] = {}
        if self.subcommand == "fit" and config.resume:
            path = config.ckpt_path
            purge["purge_step"] = 0 if path is None else int(read_checkpoint(path).get("global_step", 0))
        return TensorBoardLogger(str(self.run.path), name="", version="", default_hp_metric=False, **purge)

    def _temperature_scaling(self) -> list[TemperatureScaling]:
        """The baseline +T in front of the writer of rows; none if it is switched off, or if labels mean nothing."""
        if not self.config["test"].temperature or self.config["test"].ood:
            return []
        noise = plain_config(self.config["test"])["noise"]
        return [TemperatureScaling([row for row in self.run.rows() if row.get("noise") == noise])]

    def _provenance(self) -> dict[str, Any]:
        plain = plain_config(self.config[self.subcommand])
        return {
            **(plain.get("labels") or {}),
            "run": self.run.path.name,
            "seed": plain["seed_everything"],
            "config_hash": training_hash(plain),
            "noise": plain["noise"],
            "monte_carlo": plain["noise"]["monte_carlo"],
        }


def _other_runs(run: RunDirectory, config: dict[str, Any]) -> str:
    """What is there instead, for the message that a run is not there."""
    if not (found := runs_alike(run, config)):
        return ""
    return (
        f" There is {', '.join(str(other.path) for other in found)}, of the same backbone, data, noise and seed but "
        "with other settings, or from an earlier version: if that is the one you mean, give --run_dir."
    )


def _completed(config: Namespace) -> Namespace:
    """The same with the model's classes and channels from the checkpoint to be tested; the data tell the others."""
    config = config.clone()
    own = config[config.subcommand]
    if own.ckpt_path is not None:
        known = network_arguments(read_checkpoint(own.ckpt_path), own.ckpt_path)
        for key in ("num_classes", "in_chans"):
            if own.model[key] is None:
                own.model[key] = known.get(key)
    return config


def _listed(value: Any) -> list[Any]:
    """The configured classes in a value that is one of them, a list of them, or neither."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, Namespace)]


def plain_config(config: Any) -> dict[str, Any]:
    """A parsed configuration as plain data, without the files that it came from."""
    return {key: value for key, value in config.as_dict().items() if key != "config"}


def _require_wandb() -> None:
    if find_spec("wandb") is None:
        raise ImportError("WandbLogger needs wandb: pip install 'chaosgate[wandb]'.")

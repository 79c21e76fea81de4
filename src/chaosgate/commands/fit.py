"""``chaosgate fit|validate|test|predict``: LightningCLI with a noise key, run directories, and errors that teach."""

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stderr
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger

from chaosgate.commands.errors import one_paragraph
from chaosgate.commands.parser import TeachingParser, close_parser, require_allowed, resolve_configs
from chaosgate.commands.processes import as_command, check_run
from chaosgate.inject.callback import NoiseInjection
from chaosgate.run.checkpoint import AtomicCheckpointIO, KeepCheckpoints, Preempted, StopAtNonFiniteLoss
from chaosgate.run.checkpoint.stopping import telling_what_is_left
from chaosgate.run.directory import BEST, LAST, TOP1, RunDirectory
from chaosgate.run.identity import check_resume, history_line, readable_name, run_name, training_hash
from chaosgate.run.predictions import WritePredictions
from chaosgate.run.recording import KeepOutputs, WriteConfig, WriteCurves, WriteNoise, WriteProgress
from chaosgate.run.rows import WriteResults
from chaosgate.run.temperature import TemperatureScaling
from chaosgate.train.backbones import SyncBatchNorm
from chaosgate.train.task import ImageClassifier
from chaosgate.train.weights import network_weights, read_checkpoint, require_fit

_SETTINGS: dict[str, Any] = {
    "save_config_callback": WriteConfig,
    "model_class": ImageClassifier,
    "datamodule_class": LightningDataModule,
    "subclass_mode_data": True,
    "seed_everything_default": 0,
    "trainer_defaults": {"use_distributed_sampler": False},
    "parser_class": TeachingParser,
    "load_from_checkpoint_support": False,
}
_PARSERS: dict[str, Any] = {}  # what the first command of this process made of them
_ROLES = tuple(name.removesuffix(".ckpt") for name in (BEST, TOP1, LAST))


class ChaosgateCLI(LightningCLI):
    """LightningCLI plus ``noise:``, ``saving:``, ``run_dir``, ``resume``, ``checkpoints`` and ``labels``.

    Args:
        cleanup: Receives what must happen however the command ends.
    """

    run: RunDirectory
    results: WriteResults | None = None

    def __init__(self, *args: Any, cleanup: ExitStack, **kwargs: Any) -> None:
        self._cleanup = cleanup
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
        parser.add_argument(
            "--run_dir",
            type=str | None,
            default=None,
            help="Directory of this run. Default: runs/ and a name made from all settings that shape the training, so "
            "that 'test' with the same files and keys finds what 'fit' wrote.",
        )
        parser.add_argument(
            "--resume",
            type=bool,
            nargs="?",
            const=True,
            default=False,
            help="fit: continue the run in its directory exactly where it was cut; with no checkpoint yet, start it.",
        )
        parser.add_argument(
            "--checkpoints",
            type=str | None,
            default=None,
            help="test: which of the run's networks, e.g. best,last. best: smallest validation NLL (the default); "
            "top1: best validation Top-1; last: final epoch. Or give any file with --ckpt_path.",
        )
        parser.add_argument(
            "--labels",
            type=dict[str, str] | None,
            default=None,
            help="Copied into every result row, e.g. study, method.",
        )
        parser.add_argument(
            "--temperature",
            type=bool,
            default=True,
            help="test: fit a temperature on the validation images, and add the metrics of the scaled logits (+T).",
        )
        parser.add_argument(
            "--outputs",
            type=str | None,
            default=None,
            help="test: also keep confidence, correctness and NLL of every image, in outputs/ under this name.",
        )
        parser.add_argument(
            "--logits",
            type=bool,
            default=False,
            help="test, with --outputs: keep the logits of every test and validation image, too, in half precision.",
        )
        parser.add_argument(
            "--ood",
            type=bool,
            default=False,
            help="test: the images belong to none of the classes; labels are ignored, only confidence is measured.",
        )
        parser.add_argument(
            "--output",
            type=str | None,
            default=None,
            help="predict: where the predictions go, FILE.csv or FILE.parquet; predictions.csv in the run directory if "
            "not given.",
        )
        parser.link_arguments("seed_everything", "data.init_args.seed")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, then look at a given checkpoint before anybody else tries to load it."""
        super().parse_arguments(parser, args)
        plain = _plain(self.config[self.config.subcommand])
        check_run(plain)
        require_allowed(plain)
        path = self.config[self.config.subcommand].get("ckpt_path")
        if path is not None:
            read_checkpoint(path)

    def before_instantiate_classes(self) -> None:
        """Settle on the run directory and on the checkpoint, before anything is built."""
        config = self.config[self.config.subcommand]
        self.run = RunDirectory(config.run_dir or Path("runs", run_name(_plain(config))))
        root = config.trainer.default_root_dir
        if root is not None and Path(root).absolute() != self.run.path.absolute():
            raise ValueError(
                f"trainer.default_root_dir is {root}; here it is the run directory: give --run_dir {root}."
            )
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

    def _resume(self, config: Any) -> None:
        """Find the checkpoint to continue from; the settings must be those that the run began with."""
        if config.ckpt_path is None and (newest := self.run.resumable()) is not None:
            config.ckpt_path = str(newest)
        if config.ckpt_path is not None and (changes := check_resume(self.run, _plain(config))):
            step = int(read_checkpoint(config.ckpt_path).get("global_step", 0))
            self.save_config_kwargs = {"history": history_line(step, changes)}
            print(f"chaosgate: continued with other values of {', '.join(changes)}", file=sys.stderr)

    def _asked_networks(self, config: Any) -> list[Path]:
        """The checkpoints to test, one after the other; none if the weights come from elsewhere."""
        if config.checkpoints is not None and config.ckpt_path is not None:
            raise ValueError("--checkpoints names networks of the run, --ckpt_path a file: give one of them.")
        if config.checkpoints is not None:
            roles = [role.strip() for role in config.checkpoints.split(",")]
            if unknown := [role for role in roles if role not in _ROLES]:
                raise ValueError(
                    f"--checkpoints {config.checkpoints}: {unknown[0]!r} is not one of {', '.join(_ROLES)}."
                )
            if self.config.subcommand != "test" and len(roles) > 1:
                raise ValueError(
                    f"--checkpoints {config.checkpoints}: only 'test' takes more than one; give one of them."
                )
            return [self.run.selected(role) for role in roles]
        begun_elsewhere = config.model.checkpoint is not None or config.model.pretrained
        trained = any(self.run.checkpoints.glob("*.ckpt"))  # the run's own network comes before what it began from
        if config.ckpt_path is not None or (begun_elsewhere and not trained):
            return []
        if config.run_dir is None and not self.run.path.is_dir() and (others := _other_runs(self.run, _plain(config))):
            raise FileNotFoundError(f"no run {self.run.path}.{others}")
        return [self.run.selected(BEST)]

    def after_test(self) -> None:
        """The further networks of ``--checkpoints``."""
        for path in self._networks:
            require_fit(self.model.model, network_weights(read_checkpoint(path)), path, self.model.backbone)
            self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=str(path), weights_only=True)

    def after_instantiate_classes(self) -> None:
        """A checkpoint of another network is refused here, in one sentence."""
        config = self.config[self.config.subcommand]
        self.model.ood, path = config.ood, config.ckpt_path
        if path is not None:
            require_fit(self.model.model, network_weights(read_checkpoint(path)), path, self.model.backbone)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The trainer, with this library's callbacks and logger beside those of the configuration."""
        config = self.config_init[self.subcommand]
        callbacks = list(config.trainer.callbacks or [])
        callbacks += self._recording()
        kwargs["default_root_dir"] = str(self.run.path)  # where every callback writes, whatever the logger
        if config.trainer.logger in (None, True):
            kwargs["logger"] = self._tensorboard()
        if config.trainer.logger is not False:
            callbacks.append(LearningRateMonitor("step"))
        plugins = config.trainer.plugins or []
        kwargs["plugins"] = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
        if config.trainer.sync_batchnorm:
            kwargs["plugins"].append(SyncBatchNorm())
        return super().instantiate_trainer(callbacks=callbacks, **kwargs)

    def _recording(self) -> list[Callback]:
        """What guards and records the run, in the order in which it must be called."""
        always: list[Callback] = [WriteProgress(), WriteCurves()]  # the curve is in checkpoints; its owner is at hand
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
        """The run's curves; what an earlier life of the run logged after its checkpoint gives way to this one's."""
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
        noise = _plain(self.config["test"])["noise"]
        return [TemperatureScaling([row for row in self.run.rows() if row.get("noise") == noise])]

    def _provenance(self) -> dict[str, Any]:
        plain = _plain(self.config[self.subcommand])
        return {
            **(plain.get("labels") or {}),
            "run": self.run.path.name,
            "seed": plain["seed_everything"],
            "config_hash": training_hash(plain),
            "noise": plain["noise"],
            "monte_carlo": plain["noise"]["monte_carlo"],
        }


def _other_runs(run: RunDirectory, config: dict[str, Any]) -> str:
    """Runs beside the asked one whose names begin alike, for the message that it is not there."""
    alike = {readable_name(config), _name_before(config)}
    found = [path for path in sorted(run.path.parent.glob("*/")) if path.name.rpartition("-")[0] in alike]
    if not found:
        return ""
    return (
        f" There is {', '.join(map(str, found))}, of the same backbone, data, noise and seed but with other settings, "
        "or from an earlier version: if that is the one you mean, give --run_dir."
    )


def _name_before(config: dict[str, Any]) -> str:
    """How run directories were called before: without the strength, and with a hash that left the trainer out."""
    short = {**config, "noise": {**config["noise"]}}
    if (gate := config["noise"]["gate"]) is not None:
        short["noise"]["gate"] = {"class_path": gate["class_path"]} if "class_path" in gate else gate
    return readable_name(short)


class _Parser(Exception):
    """Carries the finished parser out of LightningCLI, which would go on to build everything."""


class _ParserOnly(ChaosgateCLI):
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        raise _Parser(parser)


@lru_cache(maxsize=1)
def _parser() -> TeachingParser:
    try:
        with ExitStack() as cleanup:
            _ParserOnly(cleanup=cleanup, **_SETTINGS)
    except _Parser as ready:
        parser: TeachingParser = ready.args[0]
        return parser
    raise AssertionError("LightningCLI did not parse")


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The configuration that a command line means, as plain data with all defaults; nothing is built or written.

    This is what :mod:`chaosgate.run.identity` takes. A command line that the command would refuse raises a ValueError
    with the same message. The first call makes the parser (about a second), further ones take a few tenths.

    Args:
        arguments: As after ``chaosgate``: ``fit``, ``test``, ``validate`` or ``predict``, then files and keys.
    """
    close_parser()
    said = StringIO()
    try:
        with redirect_stderr(said):
            config = _parser().parse_args(resolve_configs(arguments))
    except SystemExit:
        raise ValueError(said.getvalue().strip().removeprefix("chaosgate: ")) from None
    plain = _plain(config[config.subcommand])
    check_run(plain)
    require_allowed(plain)
    return plain


def _plain(config: Any) -> dict[str, Any]:
    """A parsed configuration as plain data, without the files that it came from."""
    return {key: value for key, value in config.as_dict().items() if key != "config"}


class Outcome(NamedTuple):
    """How a command ended: its exit status, and the rows that a test has written."""

    status: int
    rows: list[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand in this process; errors of the user's making end in one paragraph and status 1."""
    return execute(sys.argv[1:] if arguments is None else arguments).status


def execute(arguments: Sequence[str]) -> Outcome:
    """The same for callers that go on with what a test has found."""
    try:
        with ExitStack() as cleanup:
            close_parser()
            cleanup.enter_context(as_command(resolve_configs(arguments)))
            command = ChaosgateCLI(cleanup=cleanup, **_SETTINGS)
    except Preempted as stop:
        print(f"chaosgate: {stop}", file=sys.stderr)
        return Outcome(stop.exit_status, [])
    except (ValueError, OSError, RuntimeError, TypeError, ImportError, MisconfigurationException) as error:
        if os.environ.get("CHAOSGATE_TRACEBACK"):
            traceback.print_exc()
        print(one_paragraph(error), file=sys.stderr)
        return Outcome(1, [])
    return Outcome(0, [] if command.results is None else command.results.written)

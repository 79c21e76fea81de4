"""``chaosgate fit|validate|test|predict``: run one of them in this process, or only parse what it would run."""

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stderr
from functools import lru_cache
from io import StringIO
from typing import Any, NamedTuple

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule
from lightning.pytorch.cli import LightningArgumentParser

from chaosgate.cli.training.cli import ChaosgateCLI, plain_config
from chaosgate.cli.training.errors import one_paragraph
from chaosgate.cli.training.parser import TeachingParser, close_parser, require_allowed, resolve_configs
from chaosgate.cli.training.processes import as_command, check_run
from chaosgate.run.checkpoint import Preempted
from chaosgate.run.recording import WriteConfig
from chaosgate.train.task import ImageClassifier

_SETTINGS: dict[str, Any] = {
    "save_config_callback": WriteConfig,
    "model_class": ImageClassifier,
    "datamodule_class": LightningDataModule,
    "subclass_mode_data": True,
    "seed_everything_default": 0,
    "parser_class": TeachingParser,
    "load_from_checkpoint_support": False,
}


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
    with redirect_stderr(StringIO()):  # which files stand behind names
        words = resolve_configs(arguments)
    try:
        with redirect_stderr(said):
            config = _parser().parse_args(words)
    except SystemExit:
        raise ValueError(said.getvalue().strip().removeprefix("chaosgate: ")) from None
    plain = plain_config(config[config.subcommand])
    check_run(plain)
    require_allowed(plain)
    return plain


class Outcome(NamedTuple):
    """How a command ended: its exit status, and the rows that a test has written."""

    status: int
    rows: list[dict[str, Any]]


def main(arguments: Sequence[str]) -> int:
    """Run a subcommand in this process; errors of the user's making end in one paragraph and status 1."""
    return execute(arguments).status


def _full_help(words: Sequence[str]) -> list[str]:
    """``--help all`` is what the parser calls ``--help``; the short help is printed before anything is imported."""
    return [word for i, word in enumerate(words) if not (word == "all" and words[i - 1] in ("-h", "--help"))]


def execute(arguments: Sequence[str]) -> Outcome:
    """The same for callers that go on with what a test has found."""
    try:
        with ExitStack() as cleanup:
            close_parser()
            cleanup.enter_context(as_command(_full_help(resolve_configs(arguments))))
            command = ChaosgateCLI(cleanup=cleanup, words=arguments, **_SETTINGS)
    except Preempted as stop:
        print(f"chaosgate: {stop}", file=sys.stderr)
        return Outcome(stop.exit_status, [])
    except (ValueError, OSError, RuntimeError, TypeError, ImportError, MisconfigurationException) as error:
        if os.environ.get("CHAOSGATE_TRACEBACK"):
            traceback.print_exc()
        print(one_paragraph(error), file=sys.stderr)
        return Outcome(1, [])
    return Outcome(0, [] if command.results is None else command.results.written)

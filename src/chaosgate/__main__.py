"""usage: chaosgate COMMAND ...

Designed internal noise for neural networks: train with it, test calibration, compare methods.

  fit        train:  chaosgate fit -c base -c data/fashion_mnist -c noise/gch
  test       test the selected checkpoint of a run; give the files and keys of its 'fit'
  validate   metrics on the validation split
  predict    class probabilities of the test images
  study      many runs as one: chaosgate study run|plan|status|report quickstart
  advise     would noise help: chaosgate advise runs/RUN_WITHOUT_NOISE
  strength   what noise of each strength does to a network: chaosgate strength runs/RUN
  verify     check the paper's statements on the shipped gates: chaosgate verify --grid 7 7
  design     derive a gate from the properties you ask for: chaosgate design
  probe      what gates do at each stage of a network: chaosgate probe runs/RUN
  audit      every source of noise in a network, and whether it acts: chaosgate audit resnet50
  sites      where in a network a gate can go, and its effect: chaosgate sites resnet50
  data       check a folder, corrupt images, fetch ImageNet-C: chaosgate data check FOLDER
  explore    write a page with sliders: field, gate, features, energy
  export     a network for timm, onnxruntime or torch: chaosgate export runs/RUN --to net.onnx
  configs    the configuration files that come with the package: chaosgate configs
  init       start a project of your own: chaosgate init my_project

Configurations compose from left to right: base, model, data, noise. -c takes a file or the name
of a shipped one; a local file wins. Any value can be set on the command line, for example
--noise.gate.init_args.log_std 0.5. A configuration may name classes of this package, torch.optim,
Lightning's callbacks, loggers and plugins, and modules in the current folder; --allow MODULE
allows another module. 'chaosgate COMMAND --help' explains a command.
"""

import os
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from chaosgate.run.files import ALLOWED, UsageError, allowed_modules

HELP = __doc__ or ""
TRAINING = ("fit", "validate", "test", "predict")
_SAFE_PATH = "PYTHONSAFEPATH"  # Python's own: the working folder does not precede what is installed
_EXPECTED = (ValueError, OSError, RuntimeError, TypeError, ImportError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status.

    0: done. 1: it could not be done, for a reason in one line. 2: it was not understood. 130 after
    Ctrl-C, 143 after SIGTERM. ``CHAOSGATE_TRACEBACK=1`` shows the traceback of an error.
    """
    if arguments is None:  # as a command, not as a function of another program
        sys.excepthook = _unexpected
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if arguments[0] == "--version":
        print(import_module("chaosgate").__version__)
        return 0
    try:
        with _own_modules(arguments) as words:
            return _run(words)
    except BaseException as error:
        if _is_interrupt(error):
            print("chaosgate: stopped by Ctrl-C; fit --resume continues.", file=sys.stderr)
            return 130
        if isinstance(error, SystemExit):  # --help
            return int(error.code or 0)
        if not isinstance(error, _EXPECTED) or os.environ.get("CHAOSGATE_TRACEBACK"):
            raise
        print(f"chaosgate {arguments[0]}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _run(words: list[str]) -> int:
    """Import what the command needs, and no more: help must be quick."""
    command = words[0]
    if command in TRAINING:
        asked = not {"-h", "--help"}.isdisjoint(words)
        if asked and words[-1] != "all":
            text = (import_module("chaosgate.cli").__doc__ or "").partition("\n\n")[2]
            print(text.format(command), end="")
            return 0
        words = words[:-1] if asked else words  # --help all
        return int(import_module("chaosgate.cli.training").main(words))
    return int(import_module("chaosgate.cli.commands").main(words))


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error: some imports turn it into another, Lightning into an exit."""
    return isinstance(error, KeyboardInterrupt) or (
        error is not None and (_is_interrupt(error.__cause__) or _is_interrupt(error.__context__))
    )


def _unexpected(kind: type[BaseException], error: Any, trace: Any) -> None:
    """The usual traceback, then how to report it."""
    sys.__excepthook__(kind, error, trace)
    if issubclass(kind, Exception):
        command = shlex.join(["chaosgate", *sys.argv[1:]])
        found = import_module("chaosgate.run.identity").versions()
        print("\nchaosgate: unexpected error. Please report the traceback and:", file=sys.stderr)
        print(f"  {command}\n  {found}", file=sys.stderr)


@contextmanager
def _own_modules(arguments: Sequence[str]) -> Iterator[list[str]]:
    """The arguments without ``--allow MODULE``, which child processes inherit.

    Modules of the working folder can be imported, after all installed ones: also with
    ``python -m``, which would put them first, and in the processes that a training starts.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--allow", action="append", default=allowed_modules())
    found, words = parser.parse_known_args(arguments)
    before, path, here = dict(os.environ), list(sys.path), os.getcwd()
    os.environ.update({ALLOWED: ",".join(found.allow), _SAFE_PATH: "1"})
    sys.path[:] = [*(entry for entry in path if entry not in ("", here)), here]
    try:
        yield words
    finally:
        sys.path[:] = path
        for name in (ALLOWED, _SAFE_PATH):
            os.environ[name] = before.get(name, "")  # empty is as good as not set


if __name__ == "__main__":
    sys.exit(main())

"""usage: chaosgate COMMAND ...

Designed internal noise for neural networks: train with it, test calibration, compare methods.

  fit        train:  chaosgate fit -c base -c data/fashion_mnist -c noise/gch
  test       test the selected checkpoint of a run; give the files and keys of its 'fit'
  validate   metrics on the validation split
  predict    class probabilities of the test images
  study      many runs as one: chaosgate study run|plan|status|report quickstart
  verify     check the paper's statements on the shipped gates: chaosgate verify --grid 7 7
  design     derive a gate from the properties you ask for: chaosgate design
  probe      what gates do at each stage of a network: chaosgate probe resnet18
  sites      where in a network a gate can go, and its effect: chaosgate sites resnet50
  data       check a folder, corrupt images, download sets: chaosgate data check FOLDER
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType

HELP = __doc__ or ""
TRAINING = {
    "fit": "Train a network.",
    "validate": "Metrics of a trained network on validation images.",
    "test": "Test a trained network, clean and corrupted.",
    "predict": "Write the predictions of a trained network for all test images.",
}
_SAFE_PATH = "PYTHONSAFEPATH"  # Python's own: the working folder does not precede what is installed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    if arguments is None:  # as a command, not as a function of another program
        sys.excepthook = _unexpected
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if arguments[0] in ("-V", "--version"):
        print(import_module("chaosgate").__version__)
        return 0
    try:
        with _own_modules(arguments) as words:
            return _run(words)
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        print("chaosgate: stopped by Ctrl-C. What was saved is kept.", file=sys.stderr)
        return 130


def _run(words: list[str]) -> int:
    """Import what the command needs, and no more: help must be quick."""
    command = words[0]
    if command in TRAINING:
        asked = not {"-h", "--help"}.isdisjoint(words)
        if asked and words[-1] != "all":
            text = (import_module("chaosgate.cli").__doc__ or "").partition("\n\n")[2]
            print(text.format(command, TRAINING[command]), end="")
            return 0
        words = words[:-1] if asked else words  # --help all
        return int(import_module("chaosgate.cli.training").main(words))
    commands = import_module("chaosgate.cli.commands")
    if command in commands.COMMANDS:
        return int(commands.main(words))
    hint = commands.did_you_mean(command, (*TRAINING, *commands.COMMANDS))
    print(f"chaosgate: no command '{command}'. {hint} See 'chaosgate --help'.", file=sys.stderr)
    return 2


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error: some imports turn it into another, Lightning into an exit."""
    return isinstance(error, KeyboardInterrupt) or (
        error is not None and (_is_interrupt(error.__cause__) or _is_interrupt(error.__context__))
    )


def _unexpected(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """The usual traceback, then how to report it."""
    sys.__excepthook__(kind, error, trace)
    if issubclass(kind, Exception):
        found = import_module("chaosgate.run.identity").versions()
        print(
            "\nchaosgate: unexpected error. Please report it where you got chaosgate from, "
            f"with the traceback and these lines:\n  {shlex.join(['chaosgate', *sys.argv[1:]])}\n  "
            + ", ".join(f"{name} {version}" for name, version in found.items()),
            file=sys.stderr,
        )


@contextmanager
def _own_modules(arguments: Sequence[str]) -> Iterator[list[str]]:
    """The arguments without ``--allow MODULE``, which child processes inherit.

    Modules of the working folder can be imported, after all installed ones: also with
    ``python -m``, which would put them first, and in the processes that a training starts.
    """
    from chaosgate.run.config_files import ALLOWED, allowed_modules

    words, allowed = [], allowed_modules()
    rest = iter(arguments)
    for word in rest:
        if word == "--allow" or word.startswith("--allow="):
            allowed.append(next(rest, "") if word == "--allow" else word.removeprefix("--allow="))
        else:
            words.append(word)
    before = {name: os.environ.get(name) for name in (ALLOWED, _SAFE_PATH)}
    os.environ.update({ALLOWED: ",".join(allowed), _SAFE_PATH: "1"})
    here, path = os.getcwd(), list(sys.path)
    sys.path[:] = [*(entry for entry in path if entry not in ("", here)), here]
    try:
        yield words
    finally:
        sys.path[:] = path
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


if __name__ == "__main__":
    sys.exit(main())

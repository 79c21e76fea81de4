"""``chaosgate COMMAND ...``: dispatch without importing anything heavy before it is needed."""

import sys
from collections.abc import Sequence
from importlib import import_module

HELP = """\
usage: chaosgate COMMAND ...

Designed internal noise for neural networks: train with it, test calibration, compare methods.

  fit        train:  chaosgate fit -c configs/base.yaml -c configs/data/fashion_mnist.yaml -c configs/noise/gch.yaml
  test       test the selected checkpoint of a run, clean and corrupted: the same files, 'test' for 'fit'
  validate   metrics on the validation split
  predict    class probabilities of the test images
  study      many runs as one: chaosgate study run|plan|status|report configs/study/quickstart.yaml
  verify     check the paper's statements on the gates that training uses: chaosgate verify --grid 7 7
  probe      what gates do at each stage of a network: chaosgate probe --help
  data       check a folder, generate ImageNet-C, download public sets: chaosgate data --help
  bench      speed against named peers in the same run: chaosgate bench gate|field|metrics|corruptions|data

Configuration files compose left to right: base, model, data, noise. Any value can be set on the command line, e.g.
--noise.gate.init_args.log_std 0.5. 'chaosgate COMMAND --help' teaches the command; --print_config shows the result.
"""

_HOME = {
    "fit": "chaosgate.commands.fit",
    "test": "chaosgate.commands.fit",
    "validate": "chaosgate.commands.fit",
    "predict": "chaosgate.commands.fit",
    "study": "chaosgate.commands.study",
    "verify": "chaosgate.commands.verify",
    "probe": "chaosgate.commands.probe",
    "data": "chaosgate.commands.data",
    "bench": "chaosgate.commands.bench",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if arguments[0] in ("-V", "--version"):
        print(import_module("chaosgate").__version__)
        return 0
    if arguments[0] not in _HOME:
        from difflib import get_close_matches

        close = get_close_matches(arguments[0], _HOME, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        print(f"chaosgate: no command '{arguments[0]}'.{hint} Commands: {', '.join(_HOME)}.", file=sys.stderr)
        return 2
    status: int = import_module(_HOME[arguments[0]]).main(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())

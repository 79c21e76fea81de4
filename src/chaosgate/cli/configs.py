"""``chaosgate configs [show|copy NAME]``: the configuration files that come with the package."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from chaosgate.cli.flags import command_parser
from chaosgate.run.config_files import find_config, shipped_configs

_DESCRIPTION = """\
The configuration files that come with the package.

  chaosgate configs                  list them, each with its first line of comment
  chaosgate configs show noise/gch   print one
  chaosgate configs copy noise/gch   put a copy here, as noise/gch.yaml; from then on the name means the copy
"""


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments[1:])
    try:
        if options.action == "list":
            _list()
        elif options.name is None:
            raise ValueError(f"'{options.action}' needs a name; 'chaosgate configs' lists them.")
        elif options.action == "show":
            print(find_config(options.name, (), "study").read_text(encoding="utf-8"), end="")
        else:
            _copy(options.name)
    except (ValueError, OSError) as error:
        print(f"chaosgate configs: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    made = command_parser("configs", _DESCRIPTION)
    made.add_argument("action", nargs="?", choices=("list", "show", "copy"), default="list")
    made.add_argument("name", nargs="?", help="such as noise/gch or study/quickstart")
    return made


def _list() -> None:
    shipped = shipped_configs()
    width = max(map(len, shipped))
    for name, path in shipped.items():
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        print(f"{name:{width}}  {first.removeprefix('#').strip() if first.startswith('#') else ''}".rstrip())


def _copy(name: str) -> None:
    """Keep the shipped folders, so that the short name finds the copy; never overwrite."""
    source = find_config(name, (), "study")
    names = {path: short for short, path in shipped_configs().items()}
    target = Path(f"{names[source]}.yaml")
    if target.exists():
        raise FileExistsError(f"{target} already exists; remove or rename it first.")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    group, _, short = names[source].partition("/")
    used = f"chaosgate study run {short}" if group == "study" else f"chaosgate ... -c {names[source]}"
    print(f"{target}: edit it; '{used}' in this folder now uses it.")

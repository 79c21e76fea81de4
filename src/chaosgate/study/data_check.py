"""Are the data there, for the training and for every test? Asked once, before a study trains for days."""

import contextlib
import io
import json
from collections.abc import Mapping, Sequence

import yaml


def first_missing_data(configurations: Mapping[str, Sequence[str]]) -> str | None:
    """What the first data module has against its folder, e.g. which cells it lacks; no image is read.

    Args:
        configurations: Command lines (subcommand first) that parse, by a name for messages.
    """
    from jsonargparse import ArgumentParser

    from chaosgate.cli import main as chaosgate
    from chaosgate.data.module import ImageData

    seen: set[str] = set()
    for name, words in configurations.items():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            chaosgate([*words, "--print_config"])
        entry = yaml.safe_load(printed.getvalue())["data"]
        if (key := json.dumps(entry, sort_keys=True)) in seen:
            continue
        seen.add(key)
        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(ImageData, "data")
        try:
            parser.instantiate(parser.parse_object({"data": entry}))
        except (OSError, ValueError) as error:
            return f"method {name}: {' '.join(str(error).split())}"
    return None

"""Configuration files, looked at before the parser does: its complaints do not say which file they are about."""

from collections.abc import Sequence
from pathlib import Path

from chaosgate.study.plan.config_parts import read_yaml


def check_config_files(words: Sequence[str]) -> None:
    """Refuse a file after ``-c`` that is no mapping in YAML, or gives a key twice; say which file and line.

    What is no file is left to the parser: ``-c`` also takes the content itself.
    """
    for flag, value in zip(words, [*words[1:], ""], strict=True):
        name = value if flag in ("-c", "--config") else flag.removeprefix("--config=")
        if name == flag or name.lstrip().startswith(("{", "[")):
            continue
        path = Path(name)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder; give a configuration file after -c.")
        if path.is_file() and path.read_bytes().strip():
            read_yaml(path)

"""YAML read as data, with the mistakes that PyYAML lets pass made visible."""

from pathlib import Path
from typing import Any

import yaml


class _Strict(yaml.SafeLoader):
    """A key given twice is an error; plain YAML keeps the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise ValueError(f"{self.name}, line {line}: '{key}' is given twice. Keep one, or rename one.")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an error names the file and the line."""
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.load(file, _Strict)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error.reason}); give a YAML file.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}; a mapping of keys to values is needed.")
    return content

"""``chaosgate configs`` and ``init``: files that come with the package, and a new project."""

import shutil
from pathlib import Path
from typing import Literal

from chaosgate.run.files import config_name, find_config, shipped_configs


def configs(action: Literal["list", "show", "copy"] = "list", name: str = "") -> None:
    """List, show or copy the configuration files that come with the package.

    Examples:
      chaosgate configs                  list them, each with its first line of comment
      chaosgate configs show noise/gch   print one
      chaosgate configs copy noise/gch   copy it to noise/gch.yaml; the name then means the copy

    Args:
        action: What to do.
        name: Name of a file, such as noise/gch or study/quickstart.
    """
    shipped = shipped_configs()
    if action == "list":
        for one, path in shipped.items():
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            print(f"{one:{max(map(len, shipped))}}  {first.lstrip('# ')}")
        return
    source = find_config(name or "NAME", (), "study")
    if action == "show":
        print(source.read_text(encoding="utf-8"), end="")
        return
    name = config_name(source)
    target = Path(f"{name}.yaml")
    if target.exists():
        raise FileExistsError(f"{target} already exists; remove or rename it first.")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    print(f"{target}: edit it; in this folder, {name} now means this file.")


def init(name: str) -> None:
    """Write a small working project into a new folder: gate, operator, data, task, study, tests.

    Args:
        name: Name of the folder and of its Python package, such as my_project.
    """
    folder, package = Path(name), Path(__file__).parents[1]
    if not folder.name.isidentifier() or folder.exists():
        raise ValueError(f"{folder} is not a Python name, or exists. Choose another name.")
    inside = package / "template"
    template = inside if inside.is_dir() else package.parents[1] / "template"
    for path in template.rglob("*"):
        if path.is_dir() or path.suffix == ".pyc":
            continue
        place = str(path.relative_to(template)).replace("my_project", folder.name)
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8").replace("my_project", folder.name)
        (folder / place).write_text(text, encoding="utf-8")
    print(f"Next:\n  cd {folder}\n  pip install -e '.[test]'\n  pytest")

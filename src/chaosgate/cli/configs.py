"""``chaosgate configs``: the configuration files that come with the package."""

import shutil
from pathlib import Path
from typing import Literal

from chaosgate.run.config_files import find_config, shipped_configs


def configs(action: Literal["list", "show", "copy"] = "list", name: str = "") -> None:
    """List, show or copy the configuration files that come with the package.

    Examples:
      chaosgate configs                  list them, each with its first line of comment
      chaosgate configs show noise/gch   print one
      chaosgate configs copy noise/gch   copy it to noise/gch.yaml; the name then means the copy

    Args:
        action: What to do.
        name: Of a file, such as noise/gch or study/quickstart.
    """
    shipped = shipped_configs()
    if action == "list":
        width = max(map(len, shipped))
        for one, path in shipped.items():
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            comment = first.removeprefix("#").strip() if first.startswith("#") else ""
            print(f"{one:{width}}  {comment}".rstrip())
        return
    source = find_config(name or "NAME", (), "study")
    if action == "show":
        print(source.read_text(encoding="utf-8"), end="")
        return
    (name,) = (one for one, path in shipped.items() if path == source)
    target = Path(f"{name}.yaml")
    if target.exists():
        raise FileExistsError(f"{target} already exists; remove or rename it first.")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    group, _, short = name.partition("/")
    used = f"chaosgate study run {short}" if group == "study" else f"chaosgate ... -c {name}"
    print(f"{target}: edit it; '{used}' in this folder now uses it.")

"""Print constraints that pin every direct dependency to its lower bound in pyproject.toml: the
oldest supported set.
"""

import re
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
groups = [project["dependencies"], *project["optional-dependencies"].values()]
for requirement in sorted({requirement for group in groups for requirement in group}):
    if match := re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)", requirement):
        print(f"{match[1]}=={match[2]}")

"""``chaosgate init NAME``: start a project that uses chaosgate."""

from pathlib import Path

import chaosgate

_HERE = Path(chaosgate.__file__).parent
TEMPLATE = next(p for p in (_HERE / "template", _HERE.parents[1] / "template") if p.is_dir())


def init(name: str) -> None:
    """Write a small working project into a new folder: gate, operator, data, task, study, tests.

    Args:
        name: Name of the folder and of its Python package, such as my_project.
    """
    folder = Path(name)
    if not folder.name.isidentifier():
        raise ValueError(f"'{folder.name}' is not a Python name. Use letters, digits and _.")
    if folder.exists():
        raise FileExistsError(f"{folder} exists. Choose another name.")
    files = [path for path in TEMPLATE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    for path in files:
        place = Path(
            *(p.replace("my_project", folder.name) for p in path.relative_to(TEMPLATE).parts)
        )
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8").replace("my_project", folder.name)
        (folder / place).write_text(text, encoding="utf-8")
    print(
        f"{folder}: {len(files)} files. Next:\n  cd {folder}\n  pip install -e '.[test]'\n  pytest"
    )

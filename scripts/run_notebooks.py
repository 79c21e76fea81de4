"""Execute notebooks from top to bottom and fail on the first error; nothing is written back."""

import sys
import time
from pathlib import Path

try:
    import nbformat
    from nbclient import NotebookClient
except ImportError:
    sys.exit("running notebooks needs nbclient: pip install 'chaosgate[notebooks]'.")


def main(paths: list[str]) -> None:
    """Run each notebook in its own folder, at most ten minutes per cell."""
    for name in paths:
        start = time.monotonic()
        notebook = nbformat.read(name, as_version=4)
        NotebookClient(
            notebook, timeout=600, resources={"metadata": {"path": str(Path(name).parent)}}
        ).execute()
        print(
            f"{name}: {sum(c.cell_type == 'code' for c in notebook.cells)} cells in {time.monotonic() - start:.0f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:])

"""Names that other packages still import from here."""

from collections.abc import Iterable
from difflib import get_close_matches

from chaosgate.field.operator import Grid, as_grid, grid_text

__all__ = ["Grid", "as_grid", "grid_text", "nearest"]


def nearest(name: object, choices: Iterable[str], most: int = 1) -> str:
    """Sentence that proposes the choices most like ``name``, to append to an error; empty if none
    is like it.

    >>> nearest("layre4", ["layer3", "layer4", "fc"])
    " Did you mean 'layer4'?"
    """
    close = get_close_matches(str(name), list(choices), n=most, cutoff=0.5)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""

"""Rules that divide a labelled set without a seed: written down here, they are the same for everybody."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def spaced_holdout(targets: Sequence[int] | NDArray[np.integer], fraction: float) -> NDArray[np.bool_]:
    r"""Mark a share of every class, evenly spaced in the given order.

    Image j of a class (j = 0, 1, ... in the given order) is held out where
    :math:`\lfloor (j + 1) f \rfloor > \lfloor j f \rfloor`: a class of n images gives :math:`\lfloor n f \rfloor`.

    >>> spaced_holdout([0, 0, 0, 0, 1, 1, 1], 0.5).tolist()
    [False, True, False, True, False, True, False]
    """
    labels = np.asarray(targets)
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        # multiples of a decimal fraction fall short of whole numbers by rounding: 10 * 0.3 * ... = 2.9999
        marks = np.floor(np.arange(len(places) + 1) * fraction + 1e-9)
        held[places] = np.diff(marks) > 0
    return held

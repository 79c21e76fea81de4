"""The corruptions of ImageNet-C, usable alone: exact laws, reproducible per image, and fast.

>>> import numpy as np
>>> from chaosgate import corruptions
>>> photo = np.zeros((224, 224, 3), dtype=np.uint8)
>>> corruptions.corrupt(photo, "glass_blur", severity=3, seed=0, index=17).shape
(224, 224, 3)
"""

from chaosgate.corruptions.apply import Corrupt, corrupt, corrupt_batch, jpeg_roundtrip
from chaosgate.corruptions.tables import COMMON, EXTRA, PAPER, SMALL, parameters

__all__ = [
    "COMMON",
    "EXTRA",
    "PAPER",
    "SMALL",
    "Corrupt",
    "corrupt",
    "corrupt_batch",
    "jpeg_roundtrip",
    "parameters",
]

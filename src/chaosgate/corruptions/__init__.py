"""The corruptions of ImageNet-C, standalone, reproducible per image, and fast.

>>> import numpy as np
>>>

*Parameters.* ``imagenet`` has the values of the 224-pixel benchmark, ``small`` those for 32-pixel
images by the same authors (CIFAR-10-C). Both come from Hendrycks and Dietterich,
*Benchmarking Neural Network Robustness to Common Corruptions and Perturbations* (ICLR 2019), and
the scripts that generated that benchmark. Every tuple is indexed by severity 1..5.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaosgate.corruptions.apply import Corrupt, corrupt, corrupt_batch, jpeg_roundtrip

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

COMMON = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The fifteen corruptions that enter the mean corruption error, in the benchmark's order."""

EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four additional corruptions, intended for validation."""

PAPER = (
    "defocus_blur",
    "gaussian_noise",
    "glass_blur",
    "jpeg_compression",
    "motion_blur",
    "pixelate",
    "shot_noise",
)
"""The seven corruptions of the paper's evaluation (tab. imagenetc_breakdown)."""

# Part of every random stream: these numbers must never change, so a new name goes to the end.
NUMBER = {name: number for number, name in enumerate(COMMON + EXTRA)}

IMAGENET: dict[str, dict[str, tuple[Any, ...]]] = {
    "gaussian_noise": {"sigma": (0.08, 0.12, 0.18, 0.26, 0.38)},
    "shot_noise": {"photons": (60, 25, 12, 5, 3)},
    "impulse_noise": {"amount": (0.03, 0.06, 0.09, 0.17, 0.27)},
    "speckle_noise": {"sigma": (0.15, 0.2, 0.35, 0.45, 0.6)},
    "gaussian_blur": {"sigma": (1, 2, 3, 4, 6)},
    "defocus_blur": {"radius": (3, 4, 6, 8, 10), "alias": (0.1, 0.5, 0.5, 0.5, 0.5)},
    "glass_blur": {
        "sigma": (0.7, 0.9, 1.0, 1.1, 1.5),
        "reach": (1, 2, 2, 3, 4),
        "scans": (2, 1, 3, 2, 2),
    },
    "motion_blur": {"radius": (10, 15, 15, 15, 20), "sigma": (3, 5, 8, 12, 15)},
    "zoom_blur": {"stop": (1.11, 1.16, 1.21, 1.26, 1.31), "step": (0.01, 0.01, 0.02, 0.02, 0.03)},
    "snow": {
        "loc": (0.1, 0.2, 0.55, 0.55, 0.55),
        "scale": (0.3,) * 5,
        "zoom": (3, 2, 4, 4.5, 2.5),
        "threshold": (0.5, 0.5, 0.9, 0.85, 0.85),
        "radius": (10, 12, 12, 12, 12),
        "sigma": (4, 4, 8, 8, 12),
        "mix": (0.8, 0.7, 0.7, 0.65, 0.55),
    },
    "frost": {
        "image_weight": (1.0, 0.8, 0.7, 0.65, 0.6),
        "frost_weight": (0.4, 0.6, 0.7, 0.7, 0.75),
    },
    "fog": {"amount": (1.5, 2.0, 2.5, 2.5, 3.0), "decay": (2, 2, 1.7, 1.5, 1.4)},
    "brightness": {"shift": (0.1, 0.2, 0.3, 0.4, 0.5)},
    "saturate": {"scale": (0.3, 0.1, 2, 5, 20), "shift": (0, 0, 0, 0.1, 0.2)},
    "contrast": {"factor": (0.4, 0.3, 0.2, 0.1, 0.05)},
    # The authors wrote 244 for 224 throughout this one, and the released images carry it.
    "elastic_transform": {
        "alpha": (244 * 2, 244 * 2, 244 * 0.05, 244 * 0.07, 244 * 0.12),
        "sigma": (244 * 0.7, 244 * 0.08, 244 * 0.01, 244 * 0.01, 244 * 0.01),
        "jitter": (244 * 0.1, 244 * 0.2, 244 * 0.02, 244 * 0.02, 244 * 0.02),
    },
    "pixelate": {"factor": (0.6, 0.5, 0.4, 0.3, 0.25)},
    "jpeg_compression": {"quality": (25, 18, 15, 10, 7)},
    "spatter": {
        "loc": (0.65, 0.65, 0.65, 0.65, 0.67),
        "scale": (0.3, 0.3, 0.3, 0.3, 0.4),
        "sigma": (4, 3, 2, 1, 1),
        "threshold": (0.69, 0.68, 0.68, 0.65, 0.65),
        "strength": (0.6, 0.6, 0.5, 1.5, 1.5),
        "mud": (False, False, False, True, True),
    },
}

SMALL_IMAGES: dict[str, dict[str, tuple[Any, ...]]] = {
    "gaussian_noise": {"sigma": (0.04, 0.06, 0.08, 0.09, 0.10)},
    "shot_noise": {"photons": (500, 250, 100, 75, 50)},
    "impulse_noise": {"amount": (0.01, 0.02, 0.03, 0.05, 0.07)},
    "speckle_noise": {"sigma": (0.06, 0.10, 0.12, 0.16, 0.20)},
    "gaussian_blur": {"sigma": (0.4, 0.6, 0.7, 0.8, 1.0)},
    "defocus_blur": {"radius": (0.3, 0.4, 0.5, 1, 1.5), "alias": (0.4, 0.5, 0.6, 0.2, 0.1)},
    "glass_blur": {
        "sigma": (0.05, 0.25, 0.4, 0.25, 0.4),
        "reach": (1,) * 5,
        "scans": (1, 1, 1, 2, 2),
    },
    "motion_blur": {"radius": (6, 6, 6, 8, 9), "sigma": (1, 1.5, 2, 2, 2.5)},
    "zoom_blur": {"stop": (1.06, 1.11, 1.16, 1.21, 1.26), "step": (0.01,) * 5},
    "fog": {"amount": (0.2, 0.5, 0.75, 1, 1.5), "decay": (3, 3, 2.5, 2, 1.75)},
    "brightness": {"shift": (0.05, 0.10, 0.15, 0.20, 0.30)},
    "saturate": {"scale": (0.3, 0.1, 1.5, 2, 2.5), "shift": (0, 0, 0, 0.1, 0.2)},
    "contrast": {"factor": (0.75, 0.5, 0.4, 0.3, 0.15)},
    "pixelate": {"factor": (0.95, 0.9, 0.85, 0.75, 0.65)},
    "jpeg_compression": {"quality": (80, 65, 58, 50, 40)},
}

SMALL = tuple(name for name in COMMON + EXTRA if name in SMALL_IMAGES)
"""The corruptions that have a table for small images."""

TABLES = {"imagenet": IMAGENET, "small": SMALL_IMAGES}


def parameters(name: str, severity: int, table: str = "imagenet") -> dict[str, Any]:
    """The parameters of one corruption at one severity.

    >>> parameters("glass_blur", 3)
    {'sigma': 1.0, 'reach': 2, 'scans': 3}
    >>> parameters("motion_blur", 1, "small")
    {'radius': 6, 'sigma': 1}
    """
    if table not in TABLES:
        raise ValueError(f"no table {table!r}; use 'imagenet' (224 pixels) or 'small' (about 32).")
    if name not in TABLES[table]:
        raise ValueError(f"no {name!r} in table {table!r}; it has {', '.join(TABLES[table])}.")
    if severity not in range(1, 6):
        raise ValueError(f"severity {severity!r} of {name}; the benchmark has 1, 2, 3, 4, 5.")
    return {key: values[int(severity) - 1] for key, values in TABLES[table][name].items()}


def __getattr__(name: str) -> Any:
    if name in __all__:  # on first use: training needs names and parameters only
        return getattr(import_module("chaosgate.corruptions.apply"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

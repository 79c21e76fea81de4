"""The corruptions of ImageNet-C, usable alone: exact laws, reproducible per image, and fast.

>>> import numpy as np
>>> from chaosgate import corruptions
>>> photo = np.zeros((224, 224, 3), dtype=np.uint8)
>>> corruptions.corrupt(photo, "glass_blur", severity=3, seed=0, index=17).shape
(224, 224, 3)

*Size.* Any size is accepted; the lengths in the tables (radii, sigmas, displacements) are pixels and do not scale. The
``imagenet`` table is made for 224 pixels; on images of 28 to 40 pixels it destroys them, take ``small`` there. Relative
to the image are: pixelate (factors of height and width), zoom blur (centre crops), the arm of the elastic transform's
affine map (a third of the shorter side), and fog (a plasma of the next power of two).

*Grey images* (one channel) work everywhere but in saturate; frost and spatter use the luma of their colours.

*What the released benchmark adds*: every image was saved as JPEG at quality 85 afterwards (`jpeg_roundtrip`), which
takes away a quarter of the noise. 32-pixel images were kept as arrays.

*Fidelity.* With ``precision="float64"`` the results are those of the plain description bit for bit, for the same draws.
The default differs by one grey level in at most a few values of ten thousand (float32 filters; more for the wide
Gaussian blurs of photographs that are largely white, up to 8 % where nine tenths are). The draws are our own: the
benchmark used one global generator whose state was not published.
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

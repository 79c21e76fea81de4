"""From a file to an image: JPEG through OpenCV, everything else through PIL."""

import os
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from chaosgate.data.listing import REMEDY
from chaosgate.data.samples import Picture, as_tensor

Decoder = Literal["fast", "pil"]
View = Callable[[Picture], Picture]


def decode(path: Path, decoder: Decoder = "fast") -> Picture:
    """The image in ``path`` as torchvision's ``ImageFolder`` reads it: RGB, not rotated.

    ``fast`` returns a tensor with the pixels of ``PIL.Image.open(path).convert("RGB")``; ``pil``
    returns a PIL image, which PIL then resizes, as for published reference numbers.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}. {REMEDY}") from error
    if decoder == "fast" and (image := decode_jpeg(data)) is not None:
        return image
    try:
        with Image.open(BytesIO(data)) as opened:
            picture = opened.convert("RGB")
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, zlib.error, ...
        raise ValueError(f"cannot decode {path} ({len(data)} bytes): {error}. {REMEDY}") from error
    return picture if decoder == "pil" else as_tensor(picture)


def decode_jpeg(data: bytes) -> Tensor | None:
    """RGB of a complete gray or three-channel JPEG by OpenCV; None for anything else.

    torchvision's decoders are deprecated since 0.29.
    """
    if not (data.startswith(b"\xff\xd8\xff") and data.endswith(b"\xff\xd9")):
        return None
    place, channels = 2, 0
    while place + 9 < len(data) and data[place] == 0xFF and not channels:
        marker = data[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # the frame header
            channels = data[place + 9]
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    if channels not in (1, 3):
        return None
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        return None
    return None if image is None else torch.from_numpy(image).permute(2, 0, 1)


def as_is(picture: Picture) -> Picture:
    """The whole image."""
    return picture


class FileImages:
    """Images in files, decoded on access and transformed by ``view``.

    The paths are one block of bytes, because a list of a million strings would be copied to every
    worker when reference counts change.
    """

    def __init__(
        self, paths: Iterable[str | Path], decoder: Decoder = "fast", view: View = as_is
    ) -> None:
        names = [os.fsencode(path) for path in paths]
        self._names = b"".join(names)
        self._ends = np.cumsum([0, *map(len, names)])
        self.decoder: Decoder = decoder
        self.view = view

    def __len__(self) -> int:
        return len(self._ends) - 1

    def path(self, index: int) -> Path:
        return Path(os.fsdecode(self._names[self._ends[index] : self._ends[index + 1]]))

    def __getitem__(self, index: int) -> Picture:
        return self.view(decode(self.path(index), self.decoder))

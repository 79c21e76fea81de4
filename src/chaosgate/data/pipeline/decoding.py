"""From a file to an image: fast where that gives what PIL gives, by PIL everywhere else."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as pixels

Decoder = Literal["fast", "pil"]
Picture = Tensor | Image.Image  # uint8 (3, H, W), or an RGB image that is resized by PIL as well

_JPEG = b"\xff\xd8\xff"
_END_OF_IMAGE = b"\xff\xd9"


def decode(path: Path, decoder: Decoder = "fast") -> Picture:
    """The image in ``path`` as torchvision's ``ImageFolder`` sees it: ``PIL.Image.open(path).convert("RGB")``.

    So orientation tags are not applied and transparency is dropped. ``fast`` decodes JPEG to a tensor through OpenCV's
    libjpeg-turbo and leaves all else (other formats, CMYK, whatever looks cut off) to PIL, pixel for pixel the same;
    ``pil`` returns a PIL image, so that resizing is PIL's too, as in published reference numbers.

    Raises:
        ValueError: The file cannot be decoded; the message names it.
    """
    try:
        data = path.read_bytes()
        if decoder == "fast" and data.startswith(_JPEG) and (image := _decode_jpeg(data)) is not None:
            return image
        picture = Image.open(BytesIO(data)).convert("RGB")
    except Exception as error:  # decoders raise what they like: OSError, SyntaxError, struct.error, zlib.error, ...
        size = f"{path.stat().st_size} bytes" if path.is_file() else "no such file"
        raise ValueError(
            f"cannot decode {path} ({size}): {type(error).__name__}: {error}. Replace or remove the file, or set "
            "data.on_error to 'skip'."
        ) from error
    return picture if decoder == "pil" else as_tensor(picture)


def as_tensor(picture: Picture) -> Tensor:
    """uint8 (C, H, W) of either kind of picture."""
    if isinstance(picture, Tensor):
        return picture
    tensor: Tensor = pixels.pil_to_tensor(picture)
    return tensor


View = Callable[[Picture], Picture]


def as_is(picture: Picture) -> Picture:
    """The view of the whole image."""
    return picture


class FileImages:
    """Images in files, decoded when asked for and shown through ``view``.

    The paths lie in one block of bytes: a list of a million strings would be copied into every worker, page by page,
    as reference counts change.
    """

    def __init__(self, paths: Iterable[str | Path], decoder: Decoder = "fast", view: View = as_is) -> None:
        names = [os.fsencode(path) for path in paths]
        self._names = b"".join(names)
        self._ends = np.cumsum([0, *map(len, names)])
        self.decoder = decoder
        self.view = view

    def __len__(self) -> int:
        return len(self._ends) - 1

    def path(self, index: int) -> Path:
        """File of image ``index``."""
        return Path(os.fsdecode(self._names[self._ends[index] : self._ends[index + 1]]))

    def __getitem__(self, index: int) -> Picture:
        return self.view(decode(self.path(index), self.decoder))


def unreadable(
    paths: Iterable[Path], decoder: Decoder = "fast", threads: int = 1, done: Callable[[], object] = lambda: None
) -> dict[Path, str]:
    """Decode every file once and say what is wrong with those that fail; ``done`` is called after each file."""

    def fault(path: Path) -> str | None:
        try:
            decode(path, decoder)
        except ValueError as error:
            return str(error)
        return None

    faults: dict[Path, str] = {}
    paths = list(paths)
    with ThreadPoolExecutor(threads) as pool:
        for path, message in zip(paths, pool.map(fault, paths), strict=True):
            done()
            if message is not None:
                faults[path] = message
    return faults


def _decode_jpeg(data: bytes) -> Tensor | None:
    """RGB of a whole grey or three-channel JPEG; none if it is anything else."""
    if not data.endswith(_END_OF_IMAGE) or _components(data) not in (1, 3):
        return None
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        return None
    if image is None:
        return None
    return torch.from_numpy(cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)).permute(2, 0, 1)


def _components(jpeg: bytes) -> int:
    """Colour components in the frame header of a JPEG; 0 if there is no frame where one should be."""
    place = 2
    while jpeg[place : place + 1] == b"\xff" and place + 9 < len(jpeg):
        marker = jpeg[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # tables share the range of the frames
            return jpeg[place + 9]
        place += 2 + int.from_bytes(jpeg[place + 2 : place + 4], "big")
    return 0

"""From a file to an image: JPEG through OpenCV, everything else through PIL."""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
Picture = Tensor | Image.Image  # uint8 (3, H, W), or an RGB image that PIL also resizes
View = Callable[[Picture], Picture]
REMEDY = "Replace or remove it; chaosgate data check FOLDER lists all damaged files."


def decode(path: Path, decoder: Decoder = "fast") -> Picture:
    """The image in ``path`` as torchvision's ``ImageFolder`` reads it: RGB, not rotated.

    ``fast`` gives a tensor with the pixels of ``PIL.Image.open(path).convert("RGB")``; ``pil``
    gives a PIL image, so that PIL also resizes, as in published reference numbers.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}. {REMEDY}") from error
    return decode_bytes(data, str(path), decoder)


def decode_bytes(data: bytes, name: str, decoder: Decoder = "fast") -> Picture:
    """The image in ``data``; ``name`` is for the error message. See :func:`decode`."""
    if decoder == "fast" and (image := _decode_jpeg(data)) is not None:
        return image
    try:
        with Image.open(BytesIO(data)) as opened:
            picture = opened.convert("RGB")
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, zlib.error, ...
        reason = re.sub(
            r"cannot identify image file <.*>", "PIL does not know the format", str(error)
        )
        raise ValueError(
            f"cannot decode {name} ({len(data)} bytes): {type(error).__name__}: {reason}. {REMEDY}"
        ) from error
    return picture if decoder == "pil" else as_tensor(picture)


def _decode_jpeg(data: bytes) -> Tensor | None:
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


def picture_size(path: Path) -> tuple[int, int]:
    """Width and height of the image in ``path``, from its header; (0, 0) if it has no valid one."""
    try:
        with Image.open(path) as opened:
            return opened.size
    except Exception:  # as in decode_bytes; whoever reads the pixels gets the message
        return 0, 0


def as_tensor(picture: Picture) -> Tensor:
    """uint8 (C, H, W) of either kind of picture."""
    if isinstance(picture, Tensor):
        return picture
    tensor: Tensor = pixels.pil_to_tensor(picture)
    return tensor


def normalised(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """float32 of uint8 (..., C, H, W): ``(image / 255 - mean) / std``."""
    m, s = (torch.tensor(values, device=image.device).view(-1, 1, 1) for values in (mean, std))
    return (image.float() / 255 - m) / s


def as_is(picture: Picture) -> Picture:
    """The view of the whole image."""
    return picture


class FileImages:
    """Images in files, decoded when asked for and shown through ``view``.

    The paths are one block of bytes. A list of a million strings would be copied into every worker
    as reference counts change.
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

    def encoded(self, index: int) -> bytes:
        """The bytes of the file."""
        return self.path(index).read_bytes()

    def __getitem__(self, index: int) -> Picture:
        return self.view(decode(self.path(index), self.decoder))


def unreadable(
    paths: Iterable[Path],
    decoder: Decoder = "fast",
    threads: int = 1,
    done: Callable[[], object] = lambda: None,
) -> dict[Path, str]:
    """Decode every file once; the files that fail, and why. ``done`` is called after each file."""

    def fault(path: Path) -> str | None:
        try:
            decode(path, decoder)
        except ValueError as error:
            return str(error)
        finally:
            done()
        return None

    paths = list(paths)
    with ThreadPoolExecutor(threads) as pool:
        found = zip(paths, pool.map(fault, paths), strict=True)
        return {path: message for path, message in found if message is not None}


def decoder_warnings(paths: Sequence[Path]) -> dict[Path, str]:
    """Warnings of libjpeg about JPEG files that it decodes all the same, e.g. truncated ones.

    libjpeg prints them to standard error, which is redirected to a file for the time of the call.
    """
    found: dict[Path, str] = {}
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            for path in paths:
                with suppress(ValueError):
                    decode(path)
                log.seek(0)
                if text := log.read().decode(errors="replace").strip():
                    found[path] = "; ".join(text.splitlines())
                log.seek(0)
                log.truncate()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    return found

"""From a file to an image: fast where that gives what PIL gives, by PIL everywhere else."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
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
_REMEDY = "Replace or remove the file, or set data.on_error to 'skip'."


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
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}. {_REMEDY}") from error
    return decode_bytes(data, str(path), decoder)


def decode_bytes(data: bytes, name: str, decoder: Decoder = "fast") -> Picture:
    """The image in ``data``; ``name`` stands in the message if it cannot be decoded. See :func:`decode`."""
    try:
        if decoder == "fast" and data.startswith(_JPEG) and (image := _decode_jpeg(data)) is not None:
            return image
        with Image.open(BytesIO(data)) as opened:
            _refuse_bomb(*opened.size)
            picture = opened.convert("RGB")
    except Exception as error:  # decoders raise what they like: OSError, SyntaxError, struct.error, zlib.error, ...
        reason = re.sub(r"cannot identify image file <.*>", "not an image that PIL knows", str(error))
        raise ValueError(
            f"cannot decode {name} ({len(data)} bytes): {type(error).__name__}: {reason}. {_REMEDY}"
        ) from error
    return picture if decoder == "pil" else as_tensor(picture)


def picture_size(path: Path) -> tuple[int, int]:
    """Width and height of the image in ``path``, from its header; (0, 0) if it has none that can be read."""
    try:
        with Image.open(path) as opened:
            return opened.size
    except Exception:  # as in decode; whoever wants the pixels will say so
        return 0, 0


def _refuse_bomb(width: int, height: int) -> None:
    """A few bytes can announce an image that fills the memory; Pillow's limit holds for all decoders."""
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise ValueError(f"{width}x{height} pixels are more than {limit}, a decompression bomb")


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
    height, width, components = _frame(data)
    if not data.endswith(_END_OF_IMAGE) or components not in (1, 3):
        return None
    _refuse_bomb(width, height)
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        return None
    return None if image is None else torch.from_numpy(image).permute(2, 0, 1)


def _frame(jpeg: bytes) -> tuple[int, int, int]:
    """Height, width and colour components in the frame header of a JPEG; zeros if there is none where one should be."""
    place = 2
    while jpeg[place : place + 1] == b"\xff" and place + 9 < len(jpeg):
        marker = jpeg[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # tables share the range of the frames
            height, width = (int.from_bytes(jpeg[place + start : place + start + 2], "big") for start in (5, 7))
            return height, width, jpeg[place + 9]
        place += 2 + int.from_bytes(jpeg[place + 2 : place + 4], "big")
    return 0, 0, 0


_WATCHED = """
import os, sys
import cv2, numpy as np
for number, path in enumerate(sys.stdin.buffer.read().split(b"\\0")):
    os.write(2, b"\\0%d\\0" % number)
    try:
        cv2.imdecode(np.fromfile(os.fsdecode(path), np.uint8), cv2.IMREAD_COLOR)
    except (cv2.error, OSError):  # whoever decodes all files says so
        pass
os.write(2, b"\\0end\\0")
"""


def decoder_warnings(paths: Sequence[Path]) -> dict[Path, str]:
    """What libjpeg prints about JPEG files that it decodes all the same: cut off before their end marker, overwritten.

    It prints to the standard error of its process, so a process of its own decodes the files, one after the other. The
    first is a file that must give a warning; if it does not, this OpenCV keeps them to itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / "broken.jpg"
        _, code = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
        broken.write_bytes(code.tobytes()[: len(code) // 2] + _END_OF_IMAGE)
        files = [broken, *paths]
        names = b"\0".join(os.fsencode(path) for path in files)
        run = subprocess.run([sys.executable, "-c", _WATCHED], input=names, stderr=subprocess.PIPE, check=False)
    words = run.stderr.decode(errors="replace").split("\0")  # text, number, text, number, ..., "end", text
    if "end" not in words:
        last = int(words[-2]) if len(words) > 1 and words[-2].isdecimal() else 0
        raise RuntimeError(f"the decoder stopped at {files[last]}: {words[-1].strip()[-200:]}")
    said = {files[int(number)]: text for number, text in zip(words[1::2], words[2::2], strict=True) if number != "end"}
    if not said[broken].strip():
        raise RuntimeError(f"OpenCV {cv2.__version__} prints no warnings about damaged files; --deep needs another.")
    del said[broken]
    return {path: "; ".join(text.strip().splitlines()) for path, text in said.items() if text.strip()}

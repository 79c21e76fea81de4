"""Corrupt one image or many: names and severities in, images of the same kind out."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from chaosgate.corruptions import blur, digital, noise, weather
from chaosgate.corruptions.levels import Bytes, Precision
from chaosgate.corruptions.tables import NUMBER, parameters

AnyImage = TypeVar("AnyImage", Bytes, torch.Tensor, Image.Image)

_WORD = 1 << 64


def generator(seed: int, name: str, severity: int, index: int) -> np.random.Generator:
    r"""The stream of one (seed, corruption, severity, image index), a pure function of these four.

    Philox is counter based: (seed, corruption, severity) make its key, the index of the image stands in the upper half
    of its 256-bit counter, and each image may use :math:`2^{128}` blocks before it would meet its neighbour. Nothing
    depends on the order of the calls or on the number of workers.

    >>> a = generator(0, "shot_noise", 3, index=7).integers(100, size=4)
    >>> b = generator(0, "shot_noise", 3, index=7).integers(100, size=4)
    >>> bool((a == b).all())
    True
    """
    for label, value in (("seed", seed), ("index", index)):
        if not 0 <= value < _WORD:
            raise ValueError(
                f"{label} {value} is outside 0 .. 2**64 - 1; it names a random stream."
            )
    key = int(seed) + _WORD * (8 * NUMBER[name] + int(severity))
    return np.random.Generator(np.random.Philox(key=key, counter=int(index) * _WORD * _WORD))


def words(
    stream: np.random.Generator, shape: tuple[int, ...]
) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint32]]":
    """Independent uniform 32-bit words of the given shape (raw output: several times faster than ``integers``)."""
    count = int(np.prod(shape))
    raw = np.asarray(stream.bit_generator.random_raw((count + 1) // 2), dtype="<u8")
    return raw.view("<u4")[:count].reshape(shape)


class _Recipe(NamedTuple):
    """How to corrupt: ``act(image[, draws], **parameters)``; ``draw(stream, shape, parameters)`` where it is random."""

    act: Callable[..., Bytes]
    draw: Callable[[np.random.Generator, tuple[int, ...], dict[str, Any]], Any] | None = None
    has_precision: bool = False
    pointwise: bool = False  # acts on each value alone, so a stack of images may be treated at once


def _words(stream: np.random.Generator, shape: tuple[int, ...], _: dict[str, Any]) -> Any:
    return words(stream, shape)


_RECIPES = {
    "gaussian_noise": _Recipe(noise.gaussian_noise, _words, pointwise=True),
    "shot_noise": _Recipe(noise.shot_noise, _words, pointwise=True),
    "impulse_noise": _Recipe(noise.impulse_noise, _words, pointwise=True),
    "speckle_noise": _Recipe(noise.speckle_noise, _words, pointwise=True),
    "gaussian_blur": _Recipe(blur.gaussian_blur, has_precision=True),
    "defocus_blur": _Recipe(blur.defocus_blur, has_precision=True),
    "glass_blur": _Recipe(
        blur.glass_blur,
        lambda stream, shape, given: blur.draw_offsets(
            stream, shape, given["reach"], given["scans"]
        ),
        has_precision=True,
    ),
    "motion_blur": _Recipe(
        blur.motion_blur, lambda stream, shape, given: blur.draw_angle(stream), True
    ),
    "zoom_blur": _Recipe(blur.zoom_blur, has_precision=True),
    "snow": _Recipe(
        weather.snow,
        lambda stream, shape, given: weather.draw_snow(stream, shape, given["zoom"]),
        has_precision=True,
    ),
    "frost": _Recipe(
        weather.frost,
        lambda stream, shape, given: weather.draw_frost(stream, shape, given["textures"]),
    ),
    "fog": _Recipe(weather.fog, lambda stream, shape, given: weather.draw_fog(stream, shape)),
    "brightness": _Recipe(weather.brightness),
    "saturate": _Recipe(digital.saturate),
    "contrast": _Recipe(digital.contrast),
    "elastic_transform": _Recipe(
        digital.elastic_transform,
        lambda stream, shape, given: digital.draw_elastic(stream, shape),
        has_precision=True,
    ),
    "spatter": _Recipe(
        weather.spatter,
        lambda stream, shape, given: stream.standard_normal(shape[:2]),
        has_precision=True,
    ),
    "pixelate": _Recipe(digital.pixelate),
    "jpeg_compression": _Recipe(digital.jpeg),
}


def corrupt(
    image: AnyImage,
    name: str,
    severity: int = 1,
    seed: int = 0,
    index: int = 0,
    table: str = "imagenet",
    precision: Precision = "float32",
    frost_textures: str | PathLike[str] | None = None,
) -> AnyImage:
    """Apply one corruption of ImageNet-C to one 8-bit image; the bare corruption, without the benchmark's JPEG save.

    The draws are a pure function of ``(seed, name, severity, index)``: give every image of a data set its own
    ``index``. ``table="small"`` takes the parameters made for 32-pixel images. ``precision="float64"`` repeats the
    benchmark's double precision bit for bit; the default differs by one grey level in a few values of ten thousand.

    Args:
        image: NumPy (H, W), (H, W, 1) or (H, W, 3); torch (H, W), (1, H, W) or (3, H, W); or Pillow "L" or "RGB".
            All 8-bit; the result is of the same kind.
        name: One of ``COMMON`` or ``EXTRA``.
        severity: 1 to 5.
        seed: Names the whole random experiment.
        index: Number of the image in its data set.
        table: "imagenet" or "small".
        precision: "float32" (fast) or "float64" (reference).
        frost_textures: Folder with the benchmark's frost pictures; only frost needs it.

    >>> image = np.full((28, 28), 128, dtype=np.uint8)
    >>> corrupt(image, "shot_noise", severity=3, index=5, table="small").shape
    (28, 28)
    """
    array, back = as_array(image)
    result = corrupt_batch(
        array[None], name, severity, seed, [index], table, precision, frost_textures
    )[0]
    return cast(AnyImage, back(result))


def corrupt_batch(
    images: npt.NDArray[np.uint8],
    name: str,
    severity: int = 1,
    seed: int = 0,
    indices: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
    table: str = "imagenet",
    precision: Precision = "float32",
    frost_textures: str | PathLike[str] | None = None,
) -> npt.NDArray[np.uint8]:
    """Corrupt a stack of images (N, H, W) or (N, H, W, C), exactly as `corrupt` would one by one.

    ``indices`` are the images' numbers in their data set, 0..N-1 where not given.
    """
    given = parameters(name, severity, table)
    if precision not in ("float32", "float64"):
        raise ValueError(
            f"no precision {precision!r}; use 'float32' (fast) or 'float64' (reference)."
        )
    stack = as_stack(images)
    numbers = range(len(stack)) if indices is None else [int(number) for number in indices]
    if len(numbers) != len(stack):
        raise ValueError(
            f"{len(numbers)} indices for {len(stack)} images; give one index per image."
        )
    recipe = _RECIPES[name]
    if recipe.has_precision:
        given["precision"] = precision
    if name == "frost":
        given["textures"] = weather.load_frost(frost_textures)
    result = np.empty_like(stack)
    step = (
        max(1, 200_000 // max(1, stack[:1].size)) if recipe.pointwise else 1
    )  # as much as stays in the cache
    for start in range(0, len(stack), step):
        part = stack[start : start + step]
        draws: list[Any] = []
        if recipe.draw is not None:
            streams = (
                generator(seed, name, severity, number) for number in numbers[start : start + step]
            )
            draws = [recipe.draw(stream, part.shape[1:], given) for stream in streams]
        if recipe.pointwise:
            result[start : start + step] = recipe.act(part, np.stack(draws), **given)
        else:
            result[start] = recipe.act(part[0], *draws, **given)
    return result.reshape(np.shape(images))


def jpeg_roundtrip(image: AnyImage, quality: int = 85) -> AnyImage:
    """Save and load as JPEG with 4:2:0 colour: how the benchmark stores its images, hence a part of it.

    The benchmark also asked for optimised Huffman tables. They make the file smaller and no pixel different, so the
    time for them is saved here.
    """
    array, back = as_array(image)
    return cast(AnyImage, back(digital.jpeg(array, quality)))


class Corrupt:
    """A corruption as a transform: ``Corrupt("fog", 3)(image, index)``.

    Inside ``torchvision.transforms.Compose`` no index arrives and every image gets the draws of index 0; a data set
    that wants fresh draws per image calls it with the number of the image. ``jpeg_quality=85`` adds the save that the
    released benchmark has.
    """

    def __init__(
        self,
        name: str,
        severity: int,
        seed: int = 0,
        table: str = "imagenet",
        jpeg_quality: int | None = None,
        precision: Precision = "float32",
        frost_textures: str | PathLike[str] | None = None,
    ) -> None:
        parameters(name, severity, table)  # complain now rather than in a worker
        self.name, self.severity, self.seed, self.table = name, severity, seed, table
        self.jpeg_quality, self.precision, self.frost_textures = (
            jpeg_quality,
            precision,
            frost_textures,
        )

    def __call__(self, image: AnyImage, index: int = 0) -> AnyImage:
        """Corrupt one image; ``index`` is its number in the data set."""
        result = corrupt(
            image,
            self.name,
            self.severity,
            self.seed,
            index,
            self.table,
            self.precision,
            self.frost_textures,
        )
        return result if self.jpeg_quality is None else jpeg_roundtrip(result, self.jpeg_quality)

    def __repr__(self) -> str:
        return f"Corrupt({self.name!r}, {self.severity}, seed={self.seed}, table={self.table!r})"


def as_array(image: Any) -> tuple[Bytes, Callable[[Bytes], Any]]:
    """One image as a contiguous (H, W, C) array with one or three channels, and the way back to its own kind."""
    if isinstance(image, Image.Image):
        if image.mode not in ("L", "RGB"):
            raise ValueError(
                f"a Pillow image of mode {image.mode!r}; corruptions take 'L' or 'RGB'. Convert it first."
            )
        array, back = as_array(np.asarray(image))
        return array, lambda result: Image.fromarray(back(result))
    if isinstance(image, torch.Tensor):
        return _from_tensor(image)
    array = np.asarray(image)
    if array.ndim not in (2, 3):
        raise ValueError(
            f"an image of shape {array.shape}; corruptions take (H, W), (H, W, 1) or (H, W, 3)."
        )
    shape = array.shape
    return as_stack(array[None])[0], lambda result: result.reshape(shape)


def as_stack(images: Any) -> Bytes:
    """A stack (N, H, W) or (N, H, W, C) as a contiguous (N, H, W, C) array."""
    stack = np.asarray(images)
    if stack.dtype != np.uint8:
        raise TypeError(
            f"images of type {stack.dtype}; corruptions are defined on uint8 grey levels 0..255."
        )
    if stack.ndim == 3:
        stack = stack[..., None]
    if stack.ndim != 4 or stack.shape[3] not in (1, 3):
        shape = np.shape(images)
        raise ValueError(
            f"images of shape {shape[1:]} in a stack of {shape[0] if shape else 0}; corruptions take (H, W), (H, W, 1) "
            "or (H, W, 3), channels last (torch tensors: first)."
        )
    if 0 in stack.shape[1:3]:
        raise ValueError(
            f"images of {stack.shape[1]} x {stack.shape[2]} pixels; there is nothing to corrupt."
        )
    return np.ascontiguousarray(stack)


def _from_tensor(image: torch.Tensor) -> tuple[Bytes, Callable[[Bytes], torch.Tensor]]:
    if image.dtype != torch.uint8:
        raise TypeError(
            f"a tensor of type {image.dtype}; corruptions are defined on uint8 grey levels 0..255."
        )
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[0] not in (1, 3)):
        raise ValueError(
            f"a tensor of shape {tuple(image.shape)}; corruptions take (H, W), (1, H, W) or (3, H, W)."
        )
    planes = image.detach().cpu().reshape(-1, *image.shape[-2:])

    def back(result: Bytes) -> torch.Tensor:
        return (
            torch.from_numpy(result.transpose(2, 0, 1).copy()).reshape(image.shape).to(image.device)
        )

    return as_stack(planes.permute(1, 2, 0).numpy()[None])[0], back

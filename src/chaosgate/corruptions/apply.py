"""Corrupt one or many images by name and severity; the type of the images is kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from chaosgate.corruptions import NUMBER, blur, digital, noise, parameters, weather
from chaosgate.corruptions.levels import Bytes, Precision

AnyImage = TypeVar("AnyImage", Bytes, torch.Tensor, Image.Image)

_WORD = 1 << 64


def generator(seed: int, name: str, severity: int, index: int) -> np.random.Generator:
    r"""The random stream of an image, a pure function of (seed, corruption, severity, index).

    Philox is counter-based: (seed, corruption, severity) are its key and the index of the image is
    the upper half of its 256-bit counter, so each image has :math:`2^{128}` blocks. The stream does
    not depend on the order of calls or the number of workers.

    >>> a = generator(0, "shot_noise", 3, index=7).integers(100, size=4)
    >>> b = generator(0, "shot_noise", 3, index=7).integers(100, size=4)
    >>> bool((a == b).all())
    True
    """
    key = int(seed) + _WORD * (8 * NUMBER[name] + int(severity))
    return np.random.Generator(np.random.Philox(key=key, counter=int(index) * _WORD * _WORD))


class _Recipe(NamedTuple):
    """How to corrupt: ``act(image[, draws], **parameters)``; ``draw(stream, shape, parameters)``.

    ``pointwise``: acts on each value alone, so a stack of images may be treated at once.
    """

    act: Callable[..., Bytes]
    draw: Callable[[np.random.Generator, tuple[int, ...], dict[str, Any]], Any] | None = None
    has_precision: bool = False
    pointwise: bool = False


def words(stream: np.random.Generator, shape: tuple[int, ...], given: object = None) -> Any:
    """Independent uniform 32-bit words (raw output: several times faster than ``integers``)."""
    count = int(np.prod(shape))
    raw = np.asarray(stream.bit_generator.random_raw((count + 1) // 2), dtype="<u8")
    return raw.view("<u4")[:count].reshape(shape)


_LAWS = {
    "gaussian_noise": noise.gaussian_law,
    "shot_noise": noise.shot_law,
    "impulse_noise": noise.impulse_law,
    "speckle_noise": noise.speckle_law,
}
_RECIPES = {
    name: _Recipe(partial(noise.draw, law), words, pointwise=True) for name, law in _LAWS.items()
} | {
    "gaussian_blur": _Recipe(blur.gaussian_blur, has_precision=True),
    "defocus_blur": _Recipe(blur.defocus_blur, has_precision=True),
    "glass_blur": _Recipe(blur.glass_blur, blur.draw_offsets, True),
    "motion_blur": _Recipe(blur.motion_blur, blur.draw_angle, True),
    "zoom_blur": _Recipe(blur.zoom_blur, has_precision=True),
    "snow": _Recipe(weather.snow, weather.draw_snow, True),
    "frost": _Recipe(weather.frost, weather.draw_frost),
    "fog": _Recipe(weather.fog, weather.draw_fog),
    "brightness": _Recipe(weather.brightness),
    "saturate": _Recipe(digital.saturate),
    "contrast": _Recipe(digital.contrast),
    "elastic_transform": _Recipe(digital.elastic_transform, digital.draw_elastic, True),
    "spatter": _Recipe(weather.spatter, weather.draw_spatter, True),
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
    """Apply one corruption of ImageNet-C to one 8-bit image, without the benchmark's final JPEG
    compression.

    The random numbers are a pure function of ``(seed, name, severity, index)``: give every image of
    a data set its own ``index``. ``table="small"`` uses the parameters for 32-pixel images.
    ``precision="float64"`` reproduces the benchmark's double precision bit for bit; the default
    differs by one gray level in a few values of ten thousand.

    Args:
        image: NumPy (H, W), (H, W, 1) or (H, W, 3); torch (H, W), (1, H, W) or (3, H, W); or Pillow
            "L" or "RGB". All 8-bit; the result is of the same kind.
        name: One of ``COMMON`` or ``EXTRA``.
        severity: 1 to 5.
        seed: Seed of the experiment.
        index: Number of the image in its data set.
        table: "imagenet" or "small".
        precision: "float32" (fast) or "float64" (reference).
        frost_textures: Folder of the benchmark's frost images; only frost needs it.

    >>> image = np.full((28, 28), 128, dtype=np.uint8)
    >>> corrupt(image, "shot_noise", severity=3, index=5, table="small").shape
    (28, 28)
    """
    array, back = as_array(image)
    options = (table, precision, frost_textures)
    result = corrupt_batch(array[None], name, severity, seed, [index], *options)
    return cast(AnyImage, back(result[0]))


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
    """Corrupt a stack of images (N, H, W) or (N, H, W, C); the result equals that of `corrupt`.

    ``indices`` are the images' numbers in their data set, by default 0..N-1.
    """
    given = parameters(name, severity, table)
    if precision not in ("float32", "float64"):
        raise ValueError(f"no precision {precision!r}; use 'float32' or 'float64'.")
    stack = as_stack(images)
    numbers = range(len(stack)) if indices is None else [int(number) for number in indices]
    if len(numbers) != len(stack):
        raise ValueError(f"{len(numbers)} indices for {len(stack)} images; give one per image.")
    recipe = _RECIPES[name]
    if recipe.has_precision:
        given["precision"] = precision
    if name == "frost":
        given["textures"] = weather.load_frost(frost_textures)
    result = np.empty_like(stack)
    # A part of a stack stays in the cache.
    step = max(1, 200_000 // max(1, stack[:1].size)) if recipe.pointwise else 1
    for start in range(0, len(stack), step):
        rows = slice(start, start + step)
        draws: list[Any] = []
        if recipe.draw is not None:
            streams = (generator(seed, name, severity, number) for number in numbers[rows])
            draws = [recipe.draw(stream, stack.shape[1:], given) for stream in streams]
        if recipe.pointwise:
            result[rows] = recipe.act(stack[rows], np.stack(draws), **given)
        else:
            result[start] = recipe.act(stack[start], *draws, **given)
    return result.reshape(np.shape(images))


def jpeg_roundtrip(image: AnyImage, quality: int = 85) -> AnyImage:
    """Save and load as JPEG with 4:2:0 color, as the benchmark stores its images.

    The benchmark also uses optimized Huffman tables. They do not change pixels and are omitted.
    """
    array, back = as_array(image)
    return cast(AnyImage, back(digital.jpeg(array, quality)))


@dataclass(frozen=True)
class Corrupt:
    """A corruption as a transform: ``Corrupt("fog", 3)(image, index)``.

    Inside ``torchvision.transforms.Compose`` there is no index, so every image gets the random
    numbers of index 0; for independent draws, call it with the number of the image.
    ``jpeg_quality=85`` adds the JPEG compression of the released benchmark; the other arguments are
    those of :func:`corrupt`.
    """

    name: str
    severity: int
    seed: int = 0
    table: str = "imagenet"
    jpeg_quality: int | None = None
    precision: Precision = "float32"
    frost_textures: str | PathLike[str] | None = None

    def __post_init__(self) -> None:
        parameters(self.name, self.severity, self.table)  # complain now rather than in a worker

    def __call__(self, image: AnyImage, index: int = 0) -> AnyImage:
        """Corrupt one image; ``index`` is its number in the data set."""
        options = (self.table, self.precision, self.frost_textures)
        result = corrupt(image, self.name, self.severity, self.seed, index, *options)
        return result if self.jpeg_quality is None else jpeg_roundtrip(result, self.jpeg_quality)


def as_array(image: Any) -> tuple[Bytes, Callable[[Bytes], Any]]:
    """One image as a contiguous (H, W, C) array, and the function back to its type."""
    if isinstance(image, torch.Tensor):
        device, planes = image.device, image.detach().cpu().numpy()
        array = planes.transpose(1, 2, 0) if planes.ndim == 3 else planes

        def to_tensor(result: Bytes) -> torch.Tensor:
            back = torch.from_numpy(result.transpose(2, 0, 1).copy())
            return back.reshape(image.shape).to(device)

        return as_stack(array[None])[0], to_tensor
    if isinstance(image, Image.Image):
        if image.mode not in ("L", "RGB"):
            raise ValueError(f"a Pillow image of mode {image.mode!r}; convert it to 'L' or 'RGB'.")
        array, back = as_array(np.asarray(image))
        return array, lambda result: Image.fromarray(back(result))
    array = np.asarray(image)
    return as_stack(array[None])[0], lambda result: result.reshape(array.shape)


def as_stack(images: Any) -> Bytes:
    """A stack (N, H, W) or (N, H, W, C) as a contiguous (N, H, W, C) array."""
    stack = np.asarray(images)
    if stack.ndim == 3:
        stack = stack[..., None]
    right = stack.ndim == 4 and stack.shape[3] in (1, 3) and 0 not in stack.shape[1:]
    if not right or stack.dtype != np.uint8:
        raise ValueError(
            f"images of type {stack.dtype} and shape {stack.shape[1:]}; corruptions take uint8 "
            "(H, W), (H, W, 1) or (H, W, 3), and torch tensors channels first."
        )
    return np.ascontiguousarray(stack)

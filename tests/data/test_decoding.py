"""Every kind of file is decoded as PIL's ``convert("RGB")`` does it, or the error names the
file."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from chaosgate.data.decoding import FileImages, decode
from chaosgate.data.samples import as_tensor

pytestmark = pytest.mark.parametrize("decoder", ["fast", "pil"])
rows, columns = np.mgrid[0:61, 0:83]
waves = [128 + 100 * np.sin(rows / a + columns / b) for a, b in ((7, 11), (13, 5), (3, 29))]
PHOTO = Image.fromarray(np.stack(waves, axis=-1).astype(np.uint8))
GRAY = PHOTO.convert("L")
DEEP = Image.fromarray(np.asarray(GRAY).astype(np.uint16) * 200)
ALPHA = PHOTO.convert("RGBA")
ALPHA.putalpha(Image.linear_gradient("L").resize(PHOTO.size))
ROTATED = Image.Exif()
ROTATED[0x0112] = 6  # "turn by 90 degrees": the reference pipeline does not look at it
FILES = {
    "jpeg.jpg": (PHOTO, {"quality": 90}),
    "444.jpg": (PHOTO, {"subsampling": 0}),
    "progressive.jpeg": (PHOTO, {"progressive": True}),
    "gray.JPG": (GRAY, {"format": "JPEG"}),
    "cmyk.jpg": (PHOTO.convert("CMYK"), {}),
    "rotated.jpg": (PHOTO, {"exif": ROTATED}),
    "alpha.png": (ALPHA, {}),
    "gray alpha.png": (ALPHA.convert("LA"), {}),
    "palette.png": (PHOTO.quantize(16), {}),
    "16 bits.png": (DEEP, {}),
    "one bit.png": (PHOTO.convert("1"), {}),
    "tiff.tif": (PHOTO, {}),
    "webp.webp": (PHOTO, {"lossless": True}),
    "png.jpg": (PHOTO, {"format": "PNG"}),
    "漢字 ä.png": (PHOTO, {}),
}


def test_every_kind_of_file_becomes_what_pil_makes_of_it(tmp_path, decoder):
    for name, (image, options) in FILES.items():
        image.save(tmp_path / name, **options)
    paths = [tmp_path / name for name in FILES]
    images = FileImages(paths, decoder)
    assert [images.path(index) for index in range(len(images))] == paths
    for path, image in zip(paths, map(as_tensor, images), strict=True):
        assert image.dtype == torch.uint8 and image.shape == (3, 61, 83), path
        with Image.open(path) as reference:
            expected = np.asarray(reference.convert("RGB")).transpose(2, 0, 1)
        assert np.array_equal(image.numpy(), expected), path


def test_a_file_that_cannot_be_decoded_is_named(tmp_path, decoder):
    jpeg, png = io.BytesIO(), io.BytesIO()
    PHOTO.save(jpeg, "JPEG"), PHOTO.save(png, "PNG")
    jpeg, png = jpeg.getvalue(), png.getvalue()
    for name, data in {
        "zero.jpg": b"",
        "half.jpg": jpeg[: len(jpeg) // 2],
        "tail.jpg": jpeg[:-50],
        "half.png": png[: len(png) // 2],
        "broken.png": png[:60] + bytes(100) + png[160:],
        "text.jpg": b"this is not an image",
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"cannot decode .*{name}.*bytes.*data check"):
            decode(tmp_path / name, decoder)
    with pytest.raises(ValueError, match="cannot read .*gone.jpg: No such file"):
        decode(tmp_path / "gone.jpg", decoder)

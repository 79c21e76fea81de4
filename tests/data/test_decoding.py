"""Every kind of file is decoded as PIL's ``convert("RGB")`` does it, or the error names the
file."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from chaosgate.data.decoding import FileImages, decode
from chaosgate.data.samples import as_tensor


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    rows, columns = np.mgrid[0:61, 0:83]
    waves = [128 + 100 * np.sin(rows / a + columns / b) for a, b in ((7, 11), (13, 5), (3, 29))]
    return Image.fromarray(np.stack(waves, axis=-1).astype(np.uint8))


def reference(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def save(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def files(folder: Path, photo: Image.Image) -> dict[str, Path]:
    rotated = Image.Exif()
    rotated[0x0112] = 6  # "turn by 90 degrees": the reference pipeline does not look at it
    deep = Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 200)
    seen_through = photo.convert("RGBA")
    seen_through.putalpha(Image.linear_gradient("L").resize(photo.size))
    return {
        "jpeg": save(folder / "a.jpg", photo, quality=90),
        "jpeg 4:4:4": save(folder / "b.jpg", photo, subsampling=0),
        "progressive jpeg": save(folder / "c.jpeg", photo, progressive=True),
        "grey jpeg": save(folder / "d.JPG", photo.convert("L"), format="JPEG"),
        "cmyk jpeg": save(folder / "e.jpg", photo.convert("CMYK")),
        "rotated jpeg": save(folder / "f.jpg", photo, exif=rotated),
        "png": save(folder / "g.png", photo),
        "grey png": save(folder / "h.png", photo.convert("L")),
        "alpha png": save(folder / "i.png", seen_through),
        "grey alpha png": save(folder / "j.png", seen_through.convert("LA")),
        "palette png": save(folder / "k.png", photo.quantize(16)),
        "16-bit png": save(folder / "l.png", deep),
        "one-bit png": save(folder / "m.png", photo.convert("1")),
        "bmp": save(folder / "n.bmp", photo),
        "tiff": save(folder / "o.tif", photo),
        "webp": save(folder / "p.webp", photo, lossless=True),
        "png called jpg": save(folder / "q.jpg", photo, format="PNG"),
    }


@pytest.mark.parametrize("decoder", ["fast", "pil"])
def test_every_kind_of_file_becomes_what_pil_makes_of_it(
    tmp_path: Path, photo: Image.Image, decoder: str
):
    for kind, path in files(tmp_path, photo).items():
        image = as_tensor(decode(path, decoder))
        assert image.dtype == torch.uint8 and image.shape == (3, 61, 83), kind
        assert np.array_equal(image.numpy(), reference(path)), kind


def bad_files(folder: Path, photo: Image.Image) -> list[Path]:
    buffer = io.BytesIO()
    photo.save(buffer, "JPEG", quality=95)
    jpeg = buffer.getvalue()
    buffer = io.BytesIO()
    photo.save(buffer, "PNG")
    png = buffer.getvalue()
    contents = {
        "zero.jpg": b"",
        "half.jpg": jpeg[: len(jpeg) // 2],
        "tail.jpg": jpeg[:-50],
        "header.jpg": jpeg[:20],
        "half.png": png[: len(png) // 2],
        "broken.png": png[:60] + bytes(100) + png[160:],
        "text.jpg": b"this is not an image",
        "page.png": b"<html>404</html>",
    }
    paths = []
    for name, data in contents.items():
        (folder / name).write_bytes(data)
        paths.append(folder / name)
    return paths


@pytest.mark.parametrize("decoder", ["fast", "pil"])
def test_a_file_that_cannot_be_decoded_is_named(tmp_path: Path, photo: Image.Image, decoder: str):
    for path in bad_files(tmp_path, photo):
        with pytest.raises(ValueError, match=f"cannot decode .*{path.name}.*bytes.*data check"):
            decode(path, decoder)
    with pytest.raises(ValueError, match="cannot read .*gone.jpg: No such file"):
        decode(tmp_path / "gone.jpg", decoder)


def test_images_in_files_keep_names_that_are_not_ascii(tmp_path: Path, photo: Image.Image):
    paths = [save(tmp_path / name, photo) for name in ("ä b.png", "c.png", "漢字.png")]
    images = FileImages(paths)
    assert len(images) == 3 and [images.path(index) for index in range(3)] == paths
    assert np.array_equal(images[2].numpy(), reference(paths[2]))
    with pytest.raises(IndexError):
        images[3]

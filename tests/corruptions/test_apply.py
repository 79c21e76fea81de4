"""The interface: kinds of image, random streams, batches, errors."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from chaosgate.corruptions import (
    COMMON,
    EXTRA,
    NUMBER,
    Corrupt,
    corrupt,
    corrupt_batch,
    jpeg_roundtrip,
)
from chaosgate.corruptions.apply import generator, words
from tests.corruptions import reference
from tests.corruptions.photo import make_photo

FIXED = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
FIXED |= {"gaussian_blur", "saturate"}
ALL_BUT_FROST = [name for name in COMMON + EXTRA if name != "frost"]


@pytest.mark.parametrize("name", ALL_BUT_FROST)
def test_a_batch_equals_its_images_one_by_one_and_draws_depend_on_seed_and_index_alone(name):
    images = np.stack([make_photo(40, 44, seed=seed) for seed in range(5)])
    images.setflags(write=False)
    indices = [7, 3, 1000, 0, 12]
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    together = corrupt_batch(images, name, 4, seed=6, indices=indices)
    for position in (4, 2, 0, 1, 3):
        alone = corrupt(images[position], name, 4, seed=6, index=indices[position])
        np.testing.assert_array_equal(together[position], alone)
    np.testing.assert_array_equal(corrupt_batch(images[2:], name, 4, 6, indices[2:]), together[2:])
    for other in (corrupt(images[0], name, 4, 5, 7), corrupt(images[0], name, 4, 6, 8)):
        assert (other == together[0]).all() == (name in FIXED)
    np.testing.assert_array_equal(np.random.get_state()[1], before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
    result = corrupt(images[0][::-1], name, 4)
    assert result.flags.writeable and result.flags.c_contiguous


def test_the_streams_are_pinned():
    # These numbers define which images a seed means.
    first, second = generator(0, "shot_noise", 3, 7), generator(12345678901, "glass_blur", 5, 49999)
    assert (NUMBER["gaussian_noise"], NUMBER["jpeg_compression"], NUMBER["saturate"]) == (0, 14, 18)
    assert words(first, (4,)).tolist() == [774856448, 2430600625, 172731556, 3665735909]
    assert words(second, (4,)).tolist() == [808547255, 3832959245, 1395062261, 458206503]


@pytest.mark.parametrize("name", ["shot_noise", "glass_blur", "jpeg_compression"])
def test_every_kind_of_image_gets_the_same_pixels_back_in_its_own_kind(name, photo):
    expected = corrupt(photo, name, 3, index=4)
    tensor = corrupt(torch.from_numpy(photo).permute(2, 0, 1), name, 3, index=4)
    np.testing.assert_array_equal(tensor.permute(1, 2, 0).numpy(), expected)
    picture = corrupt(Image.fromarray(photo), name, 3, index=4)
    assert picture.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(picture), expected)
    plane = torch.from_numpy(photo[..., 0].copy())
    gray = corrupt(Image.fromarray(plane.numpy()), name, 3, index=4)
    assert gray.mode == "L"
    np.testing.assert_array_equal(corrupt(plane[None], name, 3, index=4)[0], np.asarray(gray))
    np.testing.assert_array_equal(corrupt(plane, name, 3, index=4), np.asarray(gray))


def test_corrupt_is_a_transform_that_saves_jpeg_and_travels_to_workers(photo):
    saved = reference.jpeg_compression(photo, 85, optimize=True)  # the tables change no pixel
    np.testing.assert_array_equal(jpeg_roundtrip(photo), saved)
    transform = Corrupt("shot_noise", 3, seed=2, jpeg_quality=85)
    expected = jpeg_roundtrip(corrupt(photo, "shot_noise", 3, seed=2))
    composed = transforms.Compose([transform, transforms.PILToTensor()])(Image.fromarray(photo))
    np.testing.assert_array_equal(composed.permute(1, 2, 0), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(transform))(photo), expected)
    assert (transform(photo, index=1) != expected).any()


def test_bad_input_is_refused(photo, tiny, tmp_path):
    for arguments, message in (
        (("gausian_noise", 1), "no 'gausian_noise'.*gaussian_noise"),
        (("fog", 0), "severity 0 of fog"),
        (("snow", 1, 0, 0, "small"), "no 'snow' in table 'small'"),
    ):
        with pytest.raises(ValueError, match=message):
            corrupt(photo, *arguments)
    for image in (photo[..., :2], torch.from_numpy(photo), photo[:0], photo / 255):
        with pytest.raises(ValueError, match="images of type .* take uint8"):
            corrupt(image, "fog", 1)
    with pytest.raises(ValueError, match="one channel"):
        corrupt(tiny, "saturate", 1)
    Image.fromarray(photo).save(tmp_path / "frost1.png")
    with pytest.raises(FileNotFoundError, match="needs the textures frost2.png.* frost_textures"):
        corrupt(photo, "frost", 1, frost_textures=tmp_path)
    for name in ("frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg"):
        Image.fromarray(photo).save(tmp_path / name)
    with pytest.raises(ValueError, match="larger than the frost texture"):
        corrupt(make_photo(61, 75), "frost", 1, frost_textures=tmp_path)

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp
from torchvision.transforms import InterpolationMode, v2

from chaosgate.data.augment import centre_crop, crop_and_flip, random_flip, resized_crop_and_flip
from chaosgate.data.samples import as_tensor


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photo(height: int = 50, width: int = 70) -> torch.Tensor:
    ramp = torch.arange(height * width).view(1, height, width) * torch.tensor([1, 2, 3]).view(
        3, 1, 1
    )
    return (ramp // 20 % 256).to(torch.uint8)


def test_a_padded_crop_is_a_window_of_the_padded_image_and_reaches_every_place():
    image = photo(5, 6)
    padded = torch.nn.functional.pad(image, [1, 1, 1, 1])
    places = [(top, left) for top in range(3) for left in range(3)]
    windows = {padded[:, top : top + 5, left : left + 6].numpy().tobytes() for top, left in places}
    seen = {
        crop_and_flip(image, generator(seed), 1, flip=False).numpy().tobytes()
        for seed in range(200)
    }
    assert seen == windows


@pytest.mark.statistical
def test_half_of_the_images_are_mirrored():
    image = photo()
    flips = sum(not torch.equal(random_flip(image, generator(seed)), image) for seed in range(1000))
    assert abs(flips - 500) < 80  # five standard deviations of a fair coin
    assert torch.equal(random_flip(image, generator(), p=1.0), image.flip(-1))
    assert torch.equal(random_flip(image, generator(), p=0.0), image)


def test_a_pil_image_is_treated_like_its_tensor():
    image = photo()
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    assert torch.equal(as_tensor(random_flip(picture, generator(), p=1.0)), image.flip(-1))
    crop = resized_crop_and_flip(image, generator(3), 20, flip=False)
    by_pil = as_tensor(resized_crop_and_flip(picture, generator(3), 20, flip=False))
    assert (crop.int() - by_pil.int()).abs().max() <= 1  # same window, resized by another library


@pytest.mark.parametrize(("height", "width", "kept"), [(10, 100, (10, 13)), (100, 10, (13, 10))])
def test_an_image_too_thin_for_any_window_gives_its_largest_middle(
    height: int, width: int, kept: tuple[int, int]
):
    image = photo(height, width)
    crop = resized_crop_and_flip(image, generator(), 24, (1, 1), flip=False)
    top, left = (height - kept[0]) // 2, (width - kept[1]) // 2
    window = image[:, top : top + kept[0], left : left + kept[1]]
    expected = v2.functional.resize(window, [24, 24], antialias=True)
    assert torch.equal(crop, expected)


@pytest.mark.statistical
def test_windows_follow_the_law_of_torchvisions_random_resized_crop():
    # the spread of a crop of a ramp measures the window's width, or its height; Kolmogorov-Smirnov
    # at level 1e-3
    ramp = torch.linspace(0, 255, 60).to(torch.uint8)
    count = 1500
    reference = v2.RandomResizedCrop(8, antialias=True)
    for image in (ramp.view(1, 1, 60).expand(3, 80, 60), ramp.view(1, 60, 1).expand(3, 60, 80)):
        ours = torch.stack(
            [
                resized_crop_and_flip(image, generator(s), 8, flip=False).float().std()
                for s in range(count)
            ]
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            theirs = torch.stack([reference(image).float().std() for _ in range(count)])
        assert ks_2samp(ours, theirs).pvalue > 1e-3


@pytest.mark.parametrize("decoder", ["tensor", "pil"])
def test_the_central_view_is_torchvisions(decoder: str):
    image = photo(123, 77)
    picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
    source = image if decoder == "tensor" else picture
    ours = as_tensor(centre_crop(source, 64, 56, InterpolationMode.BILINEAR))
    theirs = as_tensor(v2.CenterCrop(56)(v2.Resize(64, antialias=True)(source)))
    assert ours.shape == (3, 56, 56)
    assert torch.equal(ours, theirs)

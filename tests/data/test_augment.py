"""Crops against torchvision's, and the recipe for Swin-T: timm's tools with explicit keys."""

import pytest
import torch
from scipy.stats import ks_2samp
from torchvision.transforms import InterpolationMode, v2

from chaosgate.data.augment import (
    FullRecipe,
    crop_and_flip,
    random_flip,
    resized_crop_and_flip,
)
from chaosgate.data.samples import sample_generator

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def photo(height=50, width=70):
    ramp = torch.arange(height * width).view(1, height, width)
    return (ramp * torch.tensor([1, 2, 3]).view(3, 1, 1) // 20 % 256).to(torch.uint8)


def test_a_padded_crop_is_a_window_of_the_padded_image_and_reaches_every_place():
    image = photo(5, 6)
    padded = torch.nn.functional.pad(image, [1, 1, 1, 1])
    windows = {padded[:, y : y + 5, x : x + 6] for y in range(3) for x in range(3)}
    seen = {crop_and_flip(image, generator(s), 1, flip=False).numpy().tobytes() for s in range(200)}
    assert seen == {window.numpy().tobytes() for window in windows}


@pytest.mark.parametrize(("height", "width", "kept"), [(10, 100, (10, 13)), (100, 10, (13, 10))])
def test_an_image_too_thin_for_any_window_gives_its_largest_middle(height, width, kept):
    image = photo(height, width)
    crop = resized_crop_and_flip(image, generator(), 24, (1, 1), flip=False)
    top, left = (height - kept[0]) // 2, (width - kept[1]) // 2
    window = image[:, top : top + kept[0], left : left + kept[1]]
    assert torch.equal(crop, v2.functional.resize(window, [24, 24], antialias=True))


@pytest.mark.statistical
def test_windows_and_mirroring_follow_the_law_of_torchvisions_random_resized_crop():
    # the spread of a crop of a ramp measures the window's width, or its height; Kolmogorov-Smirnov
    # at level 1e-3
    ramp = torch.linspace(0, 255, 60).to(torch.uint8)
    reference = v2.RandomResizedCrop(8, antialias=True)
    for image in (ramp.view(1, 1, 60).expand(3, 80, 60), ramp.view(1, 60, 1).expand(3, 60, 80)):
        crops = (resized_crop_and_flip(image, generator(s), 8, flip=False) for s in range(1500))
        ours = [float(crop.float().std()) for crop in crops]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            theirs = [float(reference(image).float().std()) for _ in range(1500)]
        assert ks_2samp(ours, theirs).pvalue > 1e-3
    image = photo()
    flips = sum(not torch.equal(random_flip(image, generator(s)), image) for s in range(1000))
    assert abs(flips - 500) < 80  # five standard deviations of a fair coin


def test_no_strength_that_can_be_drawn_is_refused_by_pillow():
    recipe = FullRecipe(lambda picture, generator: picture, 8, InterpolationMode.BICUBIC, MEAN, STD)
    for index in range(600):  # one in 350 images was posterized to 0 bits
        assert recipe(photo(8, 8), sample_generator(0, 0, index)).shape == (3, 8, 8)

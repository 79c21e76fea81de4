"""Losses against their formulas, mixed batches against what they are made of."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from chaosgate.train.losses import classification_loss, mix_images

LOGITS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
TARGET = torch.tensor([0, 1, 2, 3, 0, 2])


def test_without_options_it_is_cross_entropy_bit_for_bit() -> None:
    assert torch.equal(classification_loss(LOGITS, TARGET), cross_entropy(LOGITS, TARGET))


def test_focal_loss_is_its_formula() -> None:
    p = LOGITS.softmax(1)[torch.arange(6), TARGET]
    expected = (-((1 - p) ** 3) * p.log()).mean()
    assert classification_loss(LOGITS, TARGET, focal_gamma=3.0).item() == pytest.approx(expected.item(), rel=1e-6)


def test_focal_loss_of_smoothed_and_of_mixed_targets_goes_to_cross_entropy() -> None:
    """As the exponent goes to zero, with the same targets."""
    shares = 0.3 * one_hot(TARGET, 4).float() + 0.7 * one_hot(TARGET.roll(1), 4).float()
    for target in (TARGET, shares):
        limit = cross_entropy(LOGITS, target, label_smoothing=0.1).item()
        assert classification_loss(LOGITS, target, 0.1, 1e-6).item() == pytest.approx(limit, rel=1e-5)


def batch() -> tuple[Tensor, Tensor]:
    image = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 1, 10, 12).clone()  # every image has its number everywhere
    return image, torch.arange(8) % 5


def test_mixup_blends_images_and_targets_in_the_same_proportion() -> None:
    image, target = batch()
    mixed, shares = mix_images(image, target, 8, mixup=0.4, cutmix=0.0, key=(1, 2))
    assert torch.allclose(shares.sum(1), torch.ones(8))
    numbers = torch.stack([torch.arange(8.0)])
    same, other = mix_images(image, torch.arange(8), 8, 0.4, 0.0, key=(1, 2))  # a class for every image
    assert torch.equal(same, mixed)
    assert torch.allclose(mixed[:, 0, 3, 3], (other @ numbers.T).squeeze(1), atol=1e-6)


def test_cutmix_pastes_a_rectangle_and_counts_its_pixels() -> None:
    image, _ = batch()
    mixed, shares = mix_images(image, torch.arange(8), 8, mixup=0.0, cutmix=1.0, key=(3,))
    for k in range(8):
        own = (mixed[k] == k).float().mean()
        assert shares[k, k].item() == pytest.approx(own.item(), abs=1e-6)
        inside = (mixed[k, 0] != k).nonzero()
        if len(inside):
            height, width = (inside.amax(0) - inside.amin(0) + 1).tolist()
            assert len(inside) == height * width  # one rectangle, without holes


def test_mixing_is_a_function_of_its_key_and_of_nothing_else() -> None:
    image, target = batch()
    state = torch.get_rng_state()
    first = mix_images(image, target, 8, 0.2, 1.0, key=(0, 0, 5))
    assert torch.equal(torch.get_rng_state(), state)  # methods of one seed see the same data and initial weights
    again, other = (mix_images(image, target, 8, 0.2, 1.0, key=(0, 0, k)) for k in (5, 6))
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], other[0])

"""Which recipe photographs get: small images are padded and cut, and not resized for evaluation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from chaosgate.data import ImageFolder


def write_folder(root: Path, size: tuple[int, int], count: int = 10) -> Path:
    for label, name in enumerate(("ant", "bee")):
        for number in range(count):
            (root / name).mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(100 * label + number).integers(
                0, 256, (*size[::-1], 3), dtype=np.uint8
            )
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def folder(root: Path, image_size: int, **settings: object) -> ImageFolder:
    data = ImageFolder(str(root), image_size, batch_size=4, num_workers=0, **settings)  # type: ignore[arg-type]
    data.setup("fit")
    return data


@pytest.mark.parametrize("decoder", ["fast", "pil"])
def test_small_images_are_tested_as_they_are_and_trained_padded_and_cut(
    tmp_path: Path, decoder: str
):
    data = folder(write_folder(tmp_path, (32, 32)), 32, decoder=decoder)
    assert data.recipe == "small" and data.eval_resize == 32
    stored = {
        path: torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)
        for path in tmp_path.rglob("*.png")
    }
    val = next(iter(data.val_dataloader()))
    for image, index in zip(val.image, val.index.tolist(), strict=True):
        assert torch.equal(image, stored[data.listings["val"].paths[index]])
    batch = next(iter(data.train_dataloader()))
    for image, index in zip(batch.image, batch.index.tolist(), strict=True):
        padded = torch.nn.functional.pad(stored[data.listings["train"].paths[index]], [4] * 4)
        windows = [padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
        assert any(
            torch.equal(image, window) or torch.equal(image, window.flip(-1)) for window in windows
        )
    assert data.describe()["recipe"] == "small" and "resize 32" in data.describe()["transform"]


@pytest.mark.parametrize(
    ("size", "image_size", "settings", "recipe", "resize"),
    [
        ((64, 64), 64, {}, "small", 64),
        ((28, 28), 32, {}, "small", 32),
        ((80, 60), 64, {}, "standard", 73),  # photographs that are shrunk
        ((96, 96), 96, {}, "standard", 110),
        ((96, 96), 96, {"recipe": "small"}, "small", 96),
        ((32, 32), 32, {"recipe": "standard"}, "standard", 37),
        ((32, 32), 32, {"eval_resize": 40}, "small", 40),
    ],
)
def test_the_recipe_follows_the_size_of_the_images_unless_it_is_named(
    tmp_path: Path,
    size: tuple[int, int],
    image_size: int,
    settings: dict[str, object],
    recipe: str,
    resize: int,
):
    data = folder(write_folder(tmp_path, size), image_size, **settings)
    assert (data.recipe, data.eval_resize) == (recipe, resize)
    assert next(iter(data.train_dataloader())).image.shape == (4, 3, image_size, image_size)
    assert next(iter(data.val_dataloader())).image.shape[1:] == (3, image_size, image_size)

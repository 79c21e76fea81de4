"""The network of a run, of a checkpoint or of timm, and images for it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode

from chaosgate.cli.config_files import build
from chaosgate.cli.gates import named_values
from chaosgate.data import ImageData
from chaosgate.data.augment import center_crop, usual_resize
from chaosgate.data.decoding import decode
from chaosgate.data.listing import walk
from chaosgate.data.samples import as_tensor, normalized
from chaosgate.inject.dryrun import example_input
from chaosgate.run.files import RunDirectory
from chaosgate.train import backbones


@dataclass(frozen=True)
class Source:
    """A network in evaluation mode and its name; its arguments for timm; of a run also its data."""

    model: nn.Module
    name: str
    backbone: str
    arguments: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None
    run: RunDirectory | None = None
    data: Any = None


def find_network(where: str, arguments: Sequence[str] = ()) -> Source:
    """The network of a run directory, a checkpoint file, or the name of a timm model.

    Args:
        where: One of the three.
        arguments: NAME=VALUE of ``timm.create_model``, for a model by name.
    """
    path = Path(where).expanduser()
    if not path.exists() and not path.suffix and len(path.parts) == 1:
        given = named_values(arguments)
        with torch.random.fork_rng():  # without downloaded weights: random, but the same every time
            torch.manual_seed(0)
            model = backbones.create_backbone(where, **given).eval()
        weights = "" if given.get("pretrained") else " with random weights"
        return Source(model, where + weights, where)
    run = RunDirectory(path if path.is_dir() else path.absolute().parent.parent)
    file = run.selected() if path.is_dir() else path
    content = backbones.read_checkpoint(file)
    known = backbones.network_arguments(content)
    if (name := known.pop("backbone", None)) is None:
        raise ValueError(f"{file} does not name its network; it is not a checkpoint of a run.")
    given = {**known.pop("backbone_args", {}), **known}
    model = backbones.create_backbone(name, **given).eval()
    found = backbones.network_weights(content)
    backbones.require_fit(model, found, file, name)
    model.load_state_dict(found)
    about = (f"{name} of {path.name}", name, given, file)
    if not run.config.is_file() or file.absolute().parent != run.checkpoints.absolute():
        return Source(model, *about)
    data = None
    with suppress(ValueError, OSError):  # its images are not on this machine
        data = build(ImageData, run.settings()["data"])
    return Source(model, *about, run, data)


def find_images(
    source: Source, folder: Path | None, count: int, image_size: int | None = None
) -> Tensor:
    """``count`` normalized images (B, C, H, W), evenly spaced among those available.

    Args:
        source: The network they are for.
        folder: Any folder with image files below it; None takes the run's validation images.
        count: How many.
        image_size: Side of images of a folder in pixels; None is what the network was made for.
    """
    data = source.data
    if folder is None:
        if data is None:
            raise ValueError(f"there are no images for {source.name}; give --images FOLDER.")
        data.setup("validate")
        chosen = _spaced(range(len(data.val_split.targets)), count)
        pixels = torch.stack([as_tensor(data.val_split.images[i]) for i in chosen])
        return data.normalize(pixels)  # type: ignore[no-any-return]
    files = walk(folder).paths if folder.is_dir() else []
    if not files:
        raise FileNotFoundError(f"no images in {folder}; give a folder of images.")
    channels, made_for = example_input(source.model).shape[1:3]
    side = image_size or int(getattr(data, "image_size", made_for))
    cut = (usual_resize(side), side, InterpolationMode.BILINEAR)
    images = [as_tensor(center_crop(decode(path), *cut)) for path in _spaced(files, count)]
    batch = torch.stack(images).float()
    batch = batch.mean(1, keepdim=True) if channels == 1 else batch
    if data is not None:
        return data.normalize(batch)  # type: ignore[no-any-return]
    config: dict[str, Any] = getattr(source.model, "pretrained_cfg", None) or {}
    mean, std = (config.get(name, (0.5,) * channels)[:channels] for name in ("mean", "std"))
    return normalized(batch, mean, std)


def _spaced(found: Sequence[Any], count: int) -> list[Any]:
    """Evenly spaced ones: a list sorted by class gives some of each."""
    return [found[i * len(found) // min(len(found), count)] for i in range(min(len(found), count))]

"""The network of a run, of a checkpoint or of timm, and images for it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torchvision.transforms import InterpolationMode

from chaosgate.cli.config_files import build
from chaosgate.cli.gates import named_values
from chaosgate.data import FashionMNIST, ImageData
from chaosgate.data.augment import center_crop, usual_resize
from chaosgate.data.decoding import decode
from chaosgate.data.listing import walk
from chaosgate.data.samples import as_tensor, normalized
from chaosgate.inject.dryrun import example_input
from chaosgate.run.files import RunDirectory, read_yaml
from chaosgate.train import backbones

_BILINEAR = InterpolationMode.BILINEAR


@dataclass(frozen=True)
class Source:
    """A network in evaluation mode and its name; its arguments for timm; of a run also its data."""

    model: nn.Module
    name: str
    backbone: str
    arguments: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None
    run: RunDirectory | None = None
    data: ImageData | None = None


def find_network(where: str, arguments: Sequence[str] = (), backbone: str | None = None) -> Source:
    """The network of a run directory, a checkpoint file, or the name of a timm model.

    Args:
        where: One of the three.
        arguments: NAME=VALUE of ``timm.create_model``, for a model by name or a file of weights.
        backbone: Architecture of a file that holds weights only.
    """
    given = named_values(arguments)
    path = Path(where).expanduser()
    if not path.exists() and not path.suffix and len(path.parts) == 1:
        with torch.random.fork_rng():  # without downloaded weights: random, but the same every time
            torch.manual_seed(0)
            model = backbones.create_backbone(where, **given).eval()
        weights = "" if given.get("pretrained") else " with random weights"
        return Source(model, where + weights, where)
    run = RunDirectory(path if path.is_dir() else path.absolute().parent.parent)
    file = run.selected() if path.is_dir() else path
    content = backbones.read_checkpoint(file)
    known = backbones.network_arguments(content)
    name = backbone or known.get("backbone")
    if name is None:
        raise ValueError(f"{file} does not name its network; give --backbone NAME.")
    given = {key: known[key] for key in ("num_classes", "in_chans") if key in known} | given
    given |= backbones.size_argument(name, known.get("image_size")) | known.get("backbone_args", {})
    model = backbones.create_backbone(name, **given).eval()
    found = backbones.network_weights(content)
    backbones.require_fit(model, found, file, name)
    model.load_state_dict(found)
    source: dict[str, Any] = {"arguments": given, "file": file}
    if run.config.is_file() and file.absolute().parent == run.checkpoints.absolute():
        source["run"] = run
        with suppress(ValueError, OSError):  # its images are not on this machine
            data = build(LightningDataModule, read_yaml(run.config).get("data"))
            source["data"] = data if isinstance(data, ImageData) else None
    return Source(model, f"{name} of {path.name}", name, **source)


def find_images(
    source: Source, folder: Path | None, count: int, image_size: int | None = None
) -> Tensor:
    """``count`` normalized images (B, C, H, W), evenly spaced among those available.

    They come from a folder, from the run's validation split, or from Fashion-MNIST.

    Args:
        source: The network they are for.
        folder: Any folder with image files below it.
        count: How many.
        image_size: Side in pixels; None is what the network was made for.
    """
    data, (channels, side) = source.data, example_input(source.model).shape[1:3]
    if folder is not None:
        files = walk(folder).paths if folder.is_dir() else []
        if not files:
            raise FileNotFoundError(f"no images in {folder}. Give --images a folder of images.")
        side = image_size or int(getattr(data, "image_size", side))
        cut = partial(center_crop, resize=usual_resize(side), size=side, interpolation=_BILINEAR)
        images = torch.stack([as_tensor(cut(decode(path))) for path in _spaced(files, count)])
        images = images.float().mean(1, keepdim=True) if channels == 1 else images
        config: dict[str, Any] = getattr(source.model, "pretrained_cfg", None) or {}
        mean, std = (config.get(name, (0.5,) * channels)[:channels] for name in ("mean", "std"))
        return data.normalize(images) if data is not None else normalized(images, mean, std)
    if data is None and source.run is not None:
        raise ValueError("the images of this run were not found; give --images FOLDER.")
    own: Any = data or FashionMNIST(corruptions=None)
    own.setup("validate")
    chosen = _spaced(range(len(own.val_split.targets)), count)
    images = own.normalize(torch.stack([as_tensor(own.val_split.images[i]) for i in chosen]))
    if data is None:
        size = image_size or (side if channels > 1 else images.shape[-1])
        images = interpolate(images, (size, size), mode="bilinear", antialias=True)
    return images if data is not None else images.repeat(1, channels, 1, 1)


def _spaced(found: Sequence[Any], count: int) -> list[Any]:
    """Evenly spaced ones: a list sorted by class gives some of each."""
    return [found[i * len(found) // min(len(found), count)] for i in range(min(len(found), count))]

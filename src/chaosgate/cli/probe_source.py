"""What a probe looks at: a run, a checkpoint or a timm model, and some images for it."""

import math
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms import InterpolationMode

from chaosgate.cli.training.parser import import_path
from chaosgate.data.files.index import image_files
from chaosgate.data.module import ImageData
from chaosgate.data.pipeline.augment import centre_crop, usual_resize
from chaosgate.data.pipeline.decoding import as_tensor, decode, normalised
from chaosgate.data.sets.fashion_mnist import FashionMNIST
from chaosgate.inject.stages import example_input
from chaosgate.run.config_files import read_yaml
from chaosgate.run.directory import RunDirectory
from chaosgate.train.backbones import create_backbone, size_argument
from chaosgate.train.weights import network_arguments, network_weights, read_checkpoint, require_fit


@dataclass(frozen=True)
class Source:
    """A network in evaluation mode, its name, and the data module of its run if it came from one."""

    model: nn.Module
    name: str
    data: ImageData | None = None
    folder: Path | None = None


def asked_network(options: Namespace) -> Source:
    """The network that the flags of :func:`~chaosgate.cli.flags.add_network_flags` ask for."""
    return find_network(options.network, options.backbone, options.pretrained, options.num_classes, options.in_chans)


def find_network(
    where: str,
    backbone: str | None = None,
    pretrained: bool = False,
    num_classes: int | None = None,
    in_chans: int | None = None,
) -> Source:
    """The network behind a run directory, a checkpoint file, or the name of a timm model.

    Args:
        where: One of the three.
        backbone: Architecture of a file that holds weights only.
        pretrained: Fetch timm's weights for a model by name.
        num_classes: For a model by name, or a file that holds weights only.
        in_chans: Likewise.
    """
    settings = {"num_classes": num_classes, "in_chans": in_chans}
    given = {name: value for name, value in settings.items() if value is not None}
    path = Path(where).expanduser()
    if path.is_dir():
        run = RunDirectory(path)
        model, name = _from_file(run.selected(), backbone, given)
        return Source(model, f"{name} of {path.name}", run_data(run.config), path)
    if path.is_file() or path.suffix in (".ckpt", ".pth", ".pt", ".bin"):
        model, name = _from_file(path, backbone, given)
        return Source(model, f"{name} of {path.name}")
    if len(path.parts) > 1:
        raise FileNotFoundError(f"no run directory or checkpoint file {where}. Give one, or the name of a timm model.")
    with torch.random.fork_rng():  # weights that are not fetched are random, but the same every time
        torch.manual_seed(0)
        model = create_backbone(where, pretrained=pretrained, **given).eval()
    return Source(model, where if pretrained else f"{where} with random weights")


def _from_file(path: Path, backbone: str | None, given: dict[str, int]) -> tuple[nn.Module, str]:
    content = read_checkpoint(path)
    known = network_arguments(content, path)
    name = backbone or known.get("backbone")
    if name is None:
        raise ValueError(
            f"{path} holds weights but not the name of their network. Name it with --backbone NAME [--num-classes N]."
        )
    found = network_weights(content)
    settings = {key: known[key] for key in ("num_classes", "in_chans") if key in known} | given
    settings |= size_argument(name, known.get("image_size"))
    model = create_backbone(name, **{**settings, **known.get("backbone_args", {})})
    require_fit(model, found, path, name)
    model.load_state_dict(found)
    return model.eval(), str(name)


def run_data(config: Path) -> ImageData | None:
    """The data module that a run was trained with, from its configuration; None if that names none."""
    if not config.is_file():
        return None
    node = read_yaml(config).get("data") or {}
    kind = import_path(node["class_path"]) if "class_path" in node else None
    if not (isinstance(kind, type) and issubclass(kind, ImageData)):
        return None
    return kind(**(node.get("init_args") or {}))


def find_images(source: Source, folder: Path | None, count: int, image_size: int | None) -> Tensor:
    """``count`` normalised images (B, C, H, W): of a folder, of the run's validation split, or of Fashion-MNIST.

    Args:
        source: The network they are for.
        folder: Any folder with image files below it.
        count: How many, evenly spaced among those there are.
        image_size: Side in pixels; None is what the network was made for.
    """
    if folder is None and source.data is not None:
        return _validation_images(source.data, count)
    channels, side = example_input(source.model).shape[1:3]
    if folder is None:
        images = _validation_images(FashionMNIST(corruptions=None), count)
        size = image_size or (side if channels > 1 else images.shape[-1])
        return interpolate(images, (size, size), mode="bilinear", antialias=True).repeat(1, channels, 1, 1)
    images = _folder_images(folder, count, image_size or int(getattr(source.data, "image_size", side)))
    if channels == 1:
        images = images.float().mean(1, keepdim=True)
    if source.data is not None:
        return source.data.normalise(images)
    config: dict[str, Any] = getattr(source.model, "pretrained_cfg", None) or {}
    mean, std = (config.get(name, (0.5,) * channels)[:channels] for name in ("mean", "std"))
    return normalised(images, mean, std)


def _validation_images(data: ImageData, count: int) -> Tensor:
    data.setup("validate")
    split = data.val_split
    if split is None:
        raise ValueError(f"{type(data).__name__} has no validation images. Give --images FOLDER.")
    chosen = _spaced(len(split.targets), count)
    return data.normalise(torch.stack([as_tensor(split.images[i]) for i in chosen]))


def _folder_images(folder: Path, count: int, side: int) -> Tensor:
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}. Give --images a folder with image files in or below it.")
    files = image_files(folder)
    if not files:
        raise ValueError(f"no images in {folder} (looked for {' '.join(IMG_EXTENSIONS)}).")
    chosen = [files[i] for i in _spaced(len(files), count)]
    crops = [centre_crop(decode(path), usual_resize(side), side, InterpolationMode.BILINEAR) for path in chosen]
    return torch.stack([as_tensor(crop) for crop in crops])


def _spaced(size: int, count: int) -> list[int]:
    """Numbers below ``size``, evenly spaced: a sorted list of classes gives some of each."""
    return [math.floor(i * size / min(size, count)) for i in range(min(size, count))]

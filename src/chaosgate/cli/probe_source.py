"""What the commands look at: the network of a run, a checkpoint or timm, and images for it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms import InterpolationMode

from chaosgate.cli.allowed import restrict
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


def find_network(
    where: str,
    backbone: str | None = None,
    pretrained: bool = False,
    num_classes: int | None = None,
    in_chans: int | None = None,
) -> Source:
    """The network of a run directory, a checkpoint file, or the name of a timm model.

    Args:
        where: One of the three.
        backbone: Architecture of a file that holds weights only.
        pretrained: Download timm's weights for a model by name.
        num_classes: For a model by name, or a file that holds weights only.
        in_chans: The same.
    """
    settings = {"num_classes": num_classes, "in_chans": in_chans}
    given = {name: value for name, value in settings.items() if value is not None}
    path = Path(where).expanduser()
    run = RunDirectory(path) if path.is_dir() else None
    if run is None and not path.is_file() and path.suffix not in (".ckpt", ".pth", ".pt", ".bin"):
        if len(path.parts) > 1:
            raise FileNotFoundError(
                f"no run directory or checkpoint file {where}. Give one, or the name of a timm model."
            )
        with torch.random.fork_rng():  # without downloaded weights: random, but the same every time
            torch.manual_seed(0)
            model = create_backbone(where, pretrained=pretrained, **given).eval()
        return Source(model, where if pretrained else f"{where} with random weights")
    file = path if run is None else run.selected()
    content = read_checkpoint(file)
    known = network_arguments(content, file)
    name = backbone or known.get("backbone")
    if name is None:
        raise ValueError(
            f"{file} holds weights but not the name of their network. "
            "Name it with --backbone NAME [--num_classes N]."
        )
    weights = network_weights(content)
    arguments = {key: known[key] for key in ("num_classes", "in_chans") if key in known} | given
    arguments |= size_argument(name, known.get("image_size"))
    model = create_backbone(name, **{**arguments, **known.get("backbone_args", {})})
    require_fit(model, weights, file, name)
    model.load_state_dict(weights)
    data = None if run is None else run_data(run.config)
    return Source(model.eval(), f"{name} of {path.name}", data, None if run is None else path)


def run_data(config: Path) -> ImageData | None:
    """The data module of a run, from its configuration; None if it is not one of this package."""
    node = read_yaml(config).get("data") if config.is_file() else None
    data = None if node is None else build(LightningDataModule, node)
    return data if isinstance(data, ImageData) else None


def build(kind: type, node: Any) -> Any:
    """The object that a part of a configuration file describes: a subclass of ``kind``, as in ``fit``."""
    restrict()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(kind, "made")
    try:
        return parser.instantiate(parser.parse_object({"made": node})).made
    except Exception as error:  # ArgumentError, which is no ValueError
        raise ValueError(" ".join(str(error).split())) from None


def find_images(source: Source, folder: Path | None, count: int, image_size: int | None) -> Tensor:
    """``count`` normalized images (B, C, H, W), evenly spaced among those available.

    They come from a folder, from the run's validation split, or from Fashion-MNIST.

    Args:
        source: The network they are for.
        folder: Any folder with image files below it.
        count: How many.
        image_size: Side in pixels; None is what the network was made for.
    """
    if folder is None and source.data is not None:
        return _validation_images(source.data, count)
    channels, side = example_input(source.model).shape[1:3]
    if folder is None:
        images = _validation_images(FashionMNIST(corruptions=None), count)
        size = image_size or (side if channels > 1 else images.shape[-1])
        shrunk = interpolate(images, (size, size), mode="bilinear", antialias=True)
        return shrunk.repeat(1, channels, 1, 1)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}. Give --images a folder with image files.")
    files = image_files(folder)
    if not files:
        raise ValueError(f"no images in {folder} (looked for {' '.join(IMG_EXTENSIONS)}).")
    side = image_size or int(getattr(source.data, "image_size", side))
    pictures = (decode(files[i]) for i in _spaced(len(files), count))
    bilinear = InterpolationMode.BILINEAR
    crops = [centre_crop(one, usual_resize(side), side, bilinear) for one in pictures]
    images = torch.stack([as_tensor(crop) for crop in crops])
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


def _spaced(size: int, count: int) -> list[int]:
    """Indices below ``size``, evenly spaced: a list sorted by class gives some of each."""
    return [i * size // min(size, count) for i in range(min(size, count))]

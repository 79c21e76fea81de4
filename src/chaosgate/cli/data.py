"""``chaosgate data imagenet-c|download|check``."""

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn
from torchvision.datasets.folder import IMG_EXTENSIONS

from chaosgate.cli.flags import command_parser, cores, whole
from chaosgate.data.cells import NAMED, SEVERITIES, plan_cells, table_for
from chaosgate.data.files.corrupted_copies import CopySettings, write_copies
from chaosgate.data.files.download import ARCHIVES, download
from chaosgate.data.files.folders import split_of
from chaosgate.data.files.index import image_files
from chaosgate.data.module import Contents, ImageData
from chaosgate.data.pipeline.augment import usual_resize
from chaosgate.data.pipeline.decoding import decode_bytes, decoder_warnings, unreadable
from chaosgate.data.sets.cifar import CIFAR10, CIFAR100, check_copies
from chaosgate.data.sets.fashion_mnist import FashionMNIST
from chaosgate.data.sets.hugging_face import HuggingFace
from chaosgate.data.sets.image_folder import ImageFolder
from chaosgate.data.sets.imagenet import ImageNet
from chaosgate.data.sets.imagenet_c import ImageNetC
from chaosgate.data.sets.imagenet_layout import list_clean
from chaosgate.data.sets.imagenet_variants import ImageNetVariant
from chaosgate.data.sets.pets import OxfordPets

_DESCRIPTION = """\
Make, fetch and check image sets.

  chaosgate data imagenet-c --from IMAGENET/val --to FOLDER   corrupted copies on disk; stop and start as you like
  chaosgate data download imagenet-c-noise --to FOLDER        a public archive: checked, then safely unpacked
  chaosgate data check FOLDER [--deep]                        decode every image once, list all bad files, and read the
                                                              sets that are there; deep: also files that decode with a
                                                              warning, and copies of one image in two splits
"""

KINDS: Sequence[type[ImageData]] = (
    FashionMNIST,
    CIFAR10,
    CIFAR100,
    OxfordPets,
    ImageNetC,
    ImageNetVariant,
    ImageNet,
    HuggingFace,
    ImageFolder,
)
"""The sets that ``data check`` looks for, in this order."""


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments[1:])
    action = {"imagenet-c": _write, "download": _download, "check": _check}[options.action]
    try:
        return action(options)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"chaosgate data: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. What is finished is kept; the same command continues.", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    parser = command_parser("data", _DESCRIPTION)
    actions = parser.add_subparsers(dest="action", required=True)
    write = actions.add_parser("imagenet-c", help="write corrupted copies of clean images")
    write.add_argument("--from", dest="clean", type=Path, required=True, help="clean images, in class folders or not")
    write.add_argument("--to", type=Path, required=True, help="a new folder, or one this command has begun to fill")
    write.add_argument(
        "--corruptions", nargs="+", default=["paper"], help="paper (7), common (15), all (19), or names (paper)"
    )
    write.add_argument("--severities", nargs="+", type=int, default=list(SEVERITIES), help="some of 1 to 5 (all)")
    write.add_argument("--val-labels", type=Path, help="list of labels of a flat ImageNet validation folder")
    write.add_argument("--frost-textures", help="folder of the official frost pictures; only frost needs it")
    write.add_argument("--size", type=int, default=224, help="side of the copies in pixels (224)")
    write.add_argument("--resize", type=int, help="shorter side before the central cut (size / 0.875)")
    write.add_argument("--seed", type=whole(0), default=0, help="seed of all corruptions (0)")
    write.add_argument("--workers", type=whole(1), default=cores(), help="processes (all cores)")
    fetch_ = actions.add_parser("download", help="fetch a public archive")
    fetch_.add_argument("name", choices=sorted(ARCHIVES), metavar="NAME", help="one of " + ", ".join(sorted(ARCHIVES)))
    fetch_.add_argument("--to", type=Path, required=True, help="folder to unpack into")
    fetch_.add_argument("--keep", action="store_true", help="keep the archive after unpacking")
    check = actions.add_parser("check", help="read a set, and list all bad images")
    check.add_argument("root", type=Path, help="folder of images, or of a set in arrays or tables")
    check.add_argument(
        "--deep", action="store_true", help="name files that decode with a warning, and images that two splits share"
    )
    check.add_argument("--workers", type=whole(1), default=cores(), help="threads (all cores)")
    return parser


def _write(options: argparse.Namespace) -> int:
    names = [name for word in options.corruptions for name in NAMED.get(word, (word,))]
    size = options.size
    if size < 1 or (options.resize is not None and options.resize < size):
        raise ValueError(
            f"--size is {size}, --resize {options.resize}; give a size of at least 1, and resize to no less."
        )
    settings = CopySettings(options.seed, size, options.resize or usual_resize(size), table_for(size))
    cells = plan_cells(names, options.severities, settings.table)[1:]
    images = list_clean(options.clean.expanduser(), options.val_labels)
    if not images:
        raise ValueError(f"no images in {options.clean}; give --from a folder of clean images.")
    target = options.to.expanduser()
    written = write_copies(images, target, cells, settings, options.workers, options.frost_textures)
    print(f"{target}: {len(images)} images x {len(cells)} cells are there, {written} files were made now.")
    print(f"Test on it: -c data/imagenet_c --data.root {target}  (results say that it was generated)")
    return 0


def _download(options: argparse.Namespace) -> int:
    target = options.to.expanduser()
    columns = ("[progress.description]{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(options.name, total=None)
        download(
            options.name, target, options.keep, lambda done, total: progress.update(bar, completed=done, total=total)
        )
    print(f"{options.name} is in {target}.")
    return 0


def _check(options: argparse.Namespace) -> int:
    root = options.root.expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}.")
    paths = image_files(root)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"decoding {len(paths)} images", total=len(paths))
        bad = unreadable(paths, threads=max(1, options.workers), done=lambda: progress.advance(bar))
    messages = list(bad.values())
    for message in messages:
        print(message)
    known, images = check_copies(root), len(paths)
    splits = []
    for data in find_sets(root):
        splits.append(contents := data.contents())
        counts = ", ".join(f"{len(part.names)} {split}" for split, part in contents.items())
        known.append(f"{data.name}: {counts} images of {data.num_classes} classes in {root}")
        if isinstance(data, HuggingFace):  # no files of their own, so not decoded yet
            messages += (found := [text for part in contents.values() for text in _faults(part)])
            known += found
            images += sum(len(part.names) for part in contents.values())
    if not paths and not known:
        raise ValueError(f"no image files below {root} (looked for {' '.join(IMG_EXTENSIONS)}), and no set in arrays.")
    print(*known, sep="\n", end="\n" if known else "")
    faults = len(messages)
    if options.deep:
        faults += _warned([path for path in paths if path not in bad])
        shared = [pair for contents in splits or [by_folder(root, paths)] for pair in shared_images(contents)]
        for first, second in shared:
            print(f"{first} and {second} are the same image in two splits. Remove one of them.")
        print(f"{len(shared)} images are in two splits.")
        faults += len(shared)
    print(f"{len(messages)} of {images} images below {root} are bad.")
    return 1 if faults else 0


def find_sets(root: Path) -> list[ImageData]:
    """Data modules of the sets in ``root``: those that are recognised by their files, else class folders."""
    found: list[ImageData] = []
    for kind in KINDS:
        taken = any(getattr(data, "root", None) == root for data in found)
        if not (kind is ImageNet and taken or kind is ImageFolder and found):
            found += kind.found_in(root)
    return found


def by_folder(root: Path, paths: Sequence[Path]) -> dict[str, Contents]:
    """Images of the folders train, val and test below ``root``."""
    parts: dict[str, list[Path]] = {}
    for path in paths:
        if (split := split_of(path.relative_to(root).parts[0])) is not None:
            parts.setdefault(split, []).append(path)
    return {
        split: Contents([str(path) for path in files], lambda place, files=files: files[place].read_bytes())  # type: ignore[misc]
        for split, files in parts.items()
    }


def shared_images(contents: Mapping[str, Contents]) -> list[tuple[str, str]]:
    """Pairs of images with the same bytes in two splits, by name."""
    first: dict[bytes, tuple[str, str]] = {}
    shared = []
    for split, (names, read) in contents.items():
        for place, name in enumerate(names):
            known, other = first.setdefault(hashlib.sha256(read(place)).digest(), (split, name))
            if known != split:
                shared.append((other, name))
    return shared


def _faults(part: Contents) -> list[str]:
    """What is wrong with images that cannot be decoded."""
    found = []
    for place, name in enumerate(part.names):
        try:
            decode_bytes(part.read(place), name)
        except ValueError as error:
            found.append(str(error))
    return found


def _warned(paths: Sequence[Path]) -> int:
    """Print and count the files that decode with a warning."""
    warned = decoder_warnings([path for path in paths if path.suffix.lower() in (".jpg", ".jpeg")])
    for path, text in warned.items():
        print(f"{path} decodes with a warning: {text}. Replace or remove the file.")
    print(f"{len(warned)} images decode with a warning.")
    return len(warned)

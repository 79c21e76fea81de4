"""Check, corrupt and download image sets."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse.typing import NonNegativeInt, PositiveInt

if TYPE_CHECKING:
    from chaosgate.data.module import Contents, ImageData


def check(root: Path, *, deep: bool = False) -> int:
    """Decode every image of a folder, list all bad files, and read the sets in it.

    The exit status is 1 if something is wrong.

    Examples:
      chaosgate data check photos
      chaosgate data check photos --deep

    Args:
        root: Folder of images, or of a set in arrays or tables.
        deep: Also list files that decode with a warning, and images that two splits share.
    """
    from rich.console import Console

    from chaosgate.cli.commands import cores
    from chaosgate.data.cifar import check_copies
    from chaosgate.data.decoding import decoder_warnings, unreadable
    from chaosgate.data.listing import image_files

    root = root.expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}.")
    paths = image_files(root)
    with Console(stderr=True).status(f"decoding {len(paths)} images"):
        bad = unreadable(paths, threads=cores())
    faults, known, splits = list(bad.values()), check_copies(root), []
    for data in find_sets(root):
        splits.append(contents := data.contents())
        counts = ", ".join(f"{len(part.names)} {split}" for split, part in contents.items())
        known.append(f"{data.name}: {counts} images of {data.num_classes} classes in {root}")
    if not paths and not known:
        raise ValueError(f"no image files and no known data set below {root}.")
    print(*faults, *known, sep="\n")
    if deep:
        whole = [path for path in paths if path not in bad]
        for path, text in decoder_warnings(whole).items():
            faults.append(f"{path} decodes with a warning: {text}. Replace or remove the file.")
        for first, second in (pair for one in splits for pair in shared_images(one)):
            faults.append(f"{first} and {second} are the same image in two splits. Remove one.")
        print(*faults[len(bad) :], sep="\n")
    print(f"{len(bad)} of {len(paths)} images below {root} are bad.")
    return int(bool(faults))


def corrupt(
    clean: Path,
    *,
    to: Path,
    corruptions: Sequence[str] = ("paper",),
    severities: Sequence[PositiveInt] = (1, 2, 3, 4, 5),
    val_labels: Path | None = None,
    frost_textures: str | None = None,
    size: PositiveInt = 224,
    seed: NonNegativeInt = 0,
    workers: PositiveInt | None = None,
) -> None:
    """Write corrupted copies of clean images, as ImageNet-C has them.

    Stop it at any time; the same command continues.

    Examples:
      chaosgate data corrupt IMAGENET/val --to FOLDER
      chaosgate data corrupt photos --to FOLDER --corruptions pixelate fog --severities 3

    Args:
        clean: Folder of clean images, in class folders or not.
        to: A new folder, or one that this command has started to fill.
        corruptions: paper (7), common (15), all (19), or names.
        severities: Some of 1 to 5.
        val_labels: List of labels of a flat ImageNet validation folder.
        frost_textures: Folder of the official frost pictures; only frost needs it.
        size: Side of the copies in pixels.
        seed: Seed of all corruptions.
        workers: Processes (all cores).
    """
    from chaosgate.cli.commands import cores
    from chaosgate.data.augment import usual_resize
    from chaosgate.data.cells import NAMED, plan_cells, table_for
    from chaosgate.data.imagenet import list_clean
    from chaosgate.data.imagenet_c import CopySettings, write_copies

    settings = CopySettings(seed, size, usual_resize(size), table_for(size))
    names = [name for word in corruptions for name in NAMED.get(word, (word,))]
    cells = plan_cells(names, severities, settings.table)[1:]
    images = list_clean(clean.expanduser(), val_labels)
    if not images:
        raise ValueError(f"no images in {clean}; give a folder of clean images.")
    target = to.expanduser()
    written = write_copies(images, target, cells, settings, workers or cores(), frost_textures)
    print(f"{target}: {len(images)} images x {len(cells)} cells; {written} files were written now.")
    print(f"Test on it: -c data/imagenet_c --data.root {target}  (results say it was generated)")


def download(name: str, *, to: Path) -> None:
    """Download a public archive, check its digest and unpack it safely.

    Names: cifar-10, cifar-100, cifar-10-c, cifar-100-c, imagenet-a, imagenet-r, imagenet-sketch,
    imagenet-v2, imagenet-c-blur, imagenet-c-digital, imagenet-c-extra, imagenet-c-noise,
    imagenet-c-weather, oxford-pets.

    Examples:
      chaosgate data download imagenet-c-noise --to FOLDER

    Args:
        name: Of the archive.
        to: Folder to unpack into.
    """
    from rich.console import Console

    from chaosgate.data import download as archives
    from chaosgate.run.config_files import did_you_mean

    if name not in archives.ARCHIVES:
        raise ValueError(f"no archive {name!r}. {did_you_mean(name, archives.ARCHIVES)}")
    target = to.expanduser()
    with Console(stderr=True).status(name) as shown:
        report = lambda done, total: shown.update(f"{name}: {done >> 20} MB")  # noqa: E731
        archives.download(name, target, report=report)
    print(f"{name} is in {target}.")


ACTIONS = {"check": check, "corrupt": corrupt, "download": download}


def find_sets(root: Path) -> "list[ImageData]":
    """Data modules of the sets in ``root``: those recognized by their files, else class folders."""
    from chaosgate import data

    kinds: list[type[ImageData]] = [data.FashionMNIST, data.CIFAR10, data.CIFAR100]
    kinds += [data.OxfordPets, data.ImageNetC, data.ImageNetVariant, data.HuggingFace]
    found = [one for kind in kinds for one in kind.found_in(root)]
    if all(getattr(one, "root", None) != root for one in found):
        found += data.ImageNet.found_in(root)
    return found or list(data.ImageFolder.found_in(root))


def shared_images(contents: "Mapping[str, Contents]") -> Iterator[tuple[str, str]]:
    """Pairs of images with the same bytes in two splits, by name."""
    import hashlib

    first: dict[bytes, tuple[str, str]] = {}
    for split, (names, read) in contents.items():
        for place, name in enumerate(names):
            digest = hashlib.sha256(read(place)).digest()
            known, other = first.setdefault(digest, (split, name))
            if known != split:
                yield other, name

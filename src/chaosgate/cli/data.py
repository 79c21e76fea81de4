"""Check, corrupt and download image sets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse.typing import NonNegativeInt, PositiveInt

if TYPE_CHECKING:
    from chaosgate.data.module import Contents, ImageData


def check(root: Path, *, deep: bool = False, workers: PositiveInt | None = None) -> int:
    """Decode every image of a folder, list all bad files, and read the sets in it.

    The exit status is 1 if something is wrong.

    Examples:
      chaosgate data check photos
      chaosgate data check photos --deep

    Args:
        root: Folder of images, or of a set in arrays or tables.
        deep: Also list files that decode with a warning, and images that two splits share.
        workers: Threads (all cores).
    """
    from rich.console import Console
    from rich.progress import Progress
    from torchvision.datasets.folder import IMG_EXTENSIONS

    from chaosgate.cli.flags import cores
    from chaosgate.data.cifar import check_copies
    from chaosgate.data.decoding import decode_bytes, decoder_warnings, unreadable
    from chaosgate.data.hugging_face import HuggingFace
    from chaosgate.data.listing import image_files

    root = root.expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}.")
    paths = image_files(root)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"decoding {len(paths)} images", total=len(paths))
        bad = unreadable(paths, threads=workers or cores(), done=lambda: progress.advance(bar))
    print(*bad.values(), sep="\n", end="\n" if bad else "")
    found, known = find_sets(root), check_copies(root)
    faults, images, splits = len(bad), len(paths), []
    for data in found:
        splits.append(contents := data.contents())
        counts = ", ".join(f"{len(part.names)} {split}" for split, part in contents.items())
        known.append(f"{data.name}: {counts} images of {data.num_classes} classes in {root}")
        if not isinstance(data, HuggingFace):
            continue
        for part in contents.values():  # in tables, so not decoded yet
            images += len(part.names)
            for place, name in enumerate(part.names):
                try:
                    decode_bytes(part.read(place), name)
                except ValueError as error:
                    known.append(str(error))
                    faults += 1
    if not paths and not known:
        kinds = " ".join(IMG_EXTENSIONS)
        raise ValueError(
            f"no image files below {root} (looked for {kinds}), and no known data set."
        )
    print(*known, sep="\n", end="\n" if known else "")
    status = faults > 0
    if deep:
        jpegs = [p for p in paths if p not in bad and p.suffix.lower() in (".jpg", ".jpeg")]
        warned = decoder_warnings(jpegs)
        for path, text in warned.items():
            print(f"{path} decodes with a warning: {text}. Replace or remove the file.")
        print(f"{len(warned)} images decode with a warning.")
        shared = [pair for contents in splits for pair in shared_images(contents)]
        for first, second in shared:
            print(f"{first} and {second} are the same image in two splits. Remove one of them.")
        print(f"{len(shared)} images are in two splits.")
        status |= bool(warned or shared)
    print(f"{faults} of {images} images below {root} are bad.")
    return int(status)


def corrupt(
    clean: Path,
    *,
    to: Path,
    corruptions: Sequence[str] = ("paper",),
    severities: Sequence[PositiveInt] = (1, 2, 3, 4, 5),
    val_labels: Path | None = None,
    frost_textures: str | None = None,
    size: PositiveInt = 224,
    resize: PositiveInt | None = None,
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
        resize: Shorter side before the central crop (size / 0.875).
        seed: Seed of all corruptions.
        workers: Processes (all cores).
    """
    from chaosgate.cli.flags import cores
    from chaosgate.data.augment import usual_resize
    from chaosgate.data.cells import NAMED, plan_cells, table_for
    from chaosgate.data.imagenet import list_clean
    from chaosgate.data.imagenet_c import CopySettings, write_copies

    if resize is not None and resize < size:
        raise ValueError(f"--resize {resize} is smaller than --size {size}.")
    settings = CopySettings(seed, size, resize or usual_resize(size), table_for(size))
    names = [name for word in corruptions for name in NAMED.get(word, (word,))]
    cells = plan_cells(names, severities, settings.table)[1:]
    images = list_clean(clean.expanduser(), val_labels)
    if not images:
        raise ValueError(f"no images in {clean}; give a folder of clean images.")
    target = to.expanduser()
    written = write_copies(images, target, cells, settings, workers or cores(), frost_textures)
    print(f"{target}: {len(images)} images x {len(cells)} cells; {written} files were written now.")
    print(f"Test on it: -c data/imagenet_c --data.root {target}  (results say it was generated)")


def download(name: str, *, to: Path, keep: bool = False) -> None:
    """Download a public archive, check its digest and unpack it safely.

    Names: cifar-10, cifar-100, cifar-10-c, cifar-100-c, imagenet-a, imagenet-r, imagenet-sketch,
    imagenet-v2, imagenet-c-blur, imagenet-c-digital, imagenet-c-extra, imagenet-c-noise,
    imagenet-c-weather, oxford-pets.

    Examples:
      chaosgate data download imagenet-c-noise --to FOLDER

    Args:
        name: Of the archive.
        to: Folder to unpack into.
        keep: Keep the archive after unpacking.
    """
    from rich.console import Console

    from chaosgate.data.download import ARCHIVES
    from chaosgate.data.download import download as fetch
    from chaosgate.run.config_files import did_you_mean

    if name not in ARCHIVES:
        raise ValueError(f"no archive {name!r}. {did_you_mean(name, ARCHIVES)}")
    target = to.expanduser()
    with Console(stderr=True).status(name) as status:
        fetch(name, target, keep, lambda n, total: status.update(f"{name}: {n >> 20} MB"))
    print(f"{name} is in {target}.")


ACTIONS = {"check": check, "corrupt": corrupt, "download": download}


def find_sets(root: Path) -> "list[ImageData]":
    """Data modules of the sets in ``root``: those recognized by their files, else class folders."""
    from chaosgate import data as sets

    kinds: list[type[ImageData]] = [sets.FashionMNIST, sets.CIFAR10, sets.CIFAR100, sets.OxfordPets]
    kinds += [sets.ImageNetC, sets.ImageNetVariant, sets.ImageNet, sets.HuggingFace]
    found: list[ImageData] = []
    for kind in kinds:
        if kind is not sets.ImageNet or all(getattr(one, "root", None) != root for one in found):
            found += kind.found_in(root)
    return found or list(sets.ImageFolder.found_in(root))


def shared_images(contents: "Mapping[str, Contents]") -> list[tuple[str, str]]:
    """Pairs of images with the same bytes in two splits, by name."""
    import hashlib

    first: dict[bytes, tuple[str, str]] = {}
    shared = []
    for split, (names, read) in contents.items():
        for place, name in enumerate(names):
            digest = hashlib.sha256(read(place)).digest()
            known, other = first.setdefault(digest, (split, name))
            if known != split:
                shared.append((other, name))
    return shared

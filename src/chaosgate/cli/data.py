"""Check, corrupt and download image sets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse.typing import NonNegativeInt, PositiveInt

import chaosgate as cg


def check(root: Path) -> int:
    """List what would silently change a training on a folder of images.

    Decodes every image; reads the sets in the folder. The exit status is 1 if training is affected:
    images that cannot be decoded, saturate or become black; links to nothing; images that are not
    read (.heic, .avif, ...); classes without images; class names that differ only in case; the same
    image in two splits or with two labels.

    Examples:
      chaosgate data check photos

    Args:
        root: Folder of images, or of a set in arrays.
    """
    from chaosgate.cli.commands import cores
    from chaosgate.data.check import check_folder

    root = root.expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}.")
    report = check_folder(root, cores())
    if not report.images and not report.sets and not report.faults:
        raise ValueError(f"no image files and no known data set below {root}.")
    lines = list(report.sets)
    for kind, names in (*report.faults.items(), *report.notes.items()):
        lines += [f"{len(names)} {kind}:", *(f"  {name}" for name in names)]
    print("\n".join(lines).encode(errors="backslashreplace").decode())  # names may be no UTF-8
    bad = len(report.faults.get("images cannot be decoded", ()))
    print(f"{bad} of {len(report.images)} images below {root} are damaged.")
    return int(bool(report.faults))


def corrupt(
    clean: Path,
    *,
    to: Path,
    corruptions: Sequence[str] = ("paper",),
    severities: Sequence[PositiveInt] = (1, 2, 3, 4, 5),
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
        frost_textures: Folder of the official frost pictures; only frost needs it.
        size: Side of the copies in pixels.
        seed: Seed of all corruptions.
        workers: Processes (all cores).
    """
    from chaosgate.cli.commands import cores
    from chaosgate.data.augment import usual_resize
    from chaosgate.data.imagenet_c import CopySettings, list_clean, write_copies
    from chaosgate.data.module import named_corruptions, plan_cells, table_for

    settings = CopySettings(seed, size, usual_resize(size), table_for(size))
    names = [name for word in corruptions for name in named_corruptions(word)]
    cells = plan_cells(names, severities, settings.table)[1:]
    images = list_clean(clean.expanduser())
    if not images:
        raise ValueError(f"no images in {clean}; give a folder of clean images.")
    target = to.expanduser()
    written = write_copies(images, target, cells, settings, workers or cores(), frost_textures)
    print(f"{target}: {len(images)} images x {len(cells)} cells; {written} files were written now.")
    print(f"Test on it: -c data/imagenet_c --data.root {target}  (results say it was generated)")


def download(name: str, *, to: Path) -> None:
    """Download a public set through torchvision, which checks its digest and unpacks it.

    Names: fashion-mnist, cifar-10, cifar-100, oxford-pets, and the archives of ImageNet-C:
    imagenet-c-noise, imagenet-c-blur, imagenet-c-weather, imagenet-c-digital, imagenet-c-extra (the
    paper's corruptions need noise, blur and digital).

    Examples:
      chaosgate data download imagenet-c-noise --to FOLDER

    Args:
        name: Of the set or archive.
        to: Folder to unpack into.
    """
    from chaosgate.data.imagenet_c import MD5, download_group
    from chaosgate.run.files import did_you_mean

    sets: dict[str, Any] = {"fashion-mnist": cg.FashionMNIST, "cifar-10": cg.CIFAR10}
    sets |= {"cifar-100": cg.CIFAR100, "oxford-pets": cg.OxfordPets}
    groups = {f"imagenet-c-{group}": group for group in MD5}
    target = to.expanduser()
    if name not in {*sets, *groups}:
        raise ValueError(f"no set {name!r}. {did_you_mean(name, [*sets, *groups])}")
    try:
        if name in groups:
            download_group(groups[name], target)
        else:
            sets[name](str(target), download=True).prepare_data()
    except RuntimeError as error:
        raise ValueError(f"{name}: {error}") from error  # torchvision does not name the file
    print(f"{name} is in {target}.")

"""Check, corrupt and download image sets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeInt, PositiveInt


def check(root: Path) -> int:
    """Find files in a folder of images that training would read wrongly or not at all.

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
        to: A new folder, or one that an earlier call has started to fill.
        corruptions: paper (7), common (15), all (19), or names.
        severities: Severities from 1 to 5.
        frost_textures: Folder of the official frost pictures; only frost needs it.
        size: Side of the copies in pixels.
        seed: Seed of all corruptions.
        workers: Number of processes (default: all cores).
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


def download(archive: Literal["noise", "blur", "weather", "digital", "extra"], *, to: Path) -> None:
    """Download an archive of ImageNet-C, check its digest and unpack it.

    The paper's corruptions need noise, blur and digital. Other public sets are downloaded in
    training, by --data.download true.

    Examples:
      chaosgate data download noise --to FOLDER

    Args:
        archive: Archive of the release.
        to: Folder to unpack into.
    """
    from chaosgate.data.imagenet_c import download_group

    download_group(archive, to.expanduser())
    print(f"{archive} is in {to}.")

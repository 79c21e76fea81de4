"""Corrupted copies of a folder of images on disk, made as the release of ImageNet-C was; resumed where they stopped."""

import json
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from filelock import FileLock, Timeout
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from torchvision.transforms import InterpolationMode

from chaosgate.corruptions import Corrupt
from chaosgate.data.atomic import replace_file
from chaosgate.data.listing import Listing
from chaosgate.data.augment import centre_crop
from chaosgate.data.decoding import as_tensor, decode
from chaosgate.data.samples import Cell

MANIFEST, PARTS = "chaosgate.json", ".parts"


@dataclass(frozen=True)
class CopySettings:
    """Everything beside the images that decides about the pixels of the copies."""

    seed: int = 0
    size: int = 224
    resize: int = 256
    table: str = "imagenet"
    quality: int = 85


def write_copies(
    images: Sequence[tuple[Path, str]],
    target: Path,
    cells: Sequence[Cell],
    settings: CopySettings,
    workers: int = 1,
    frost_textures: str | None = None,
    quiet: bool = False,
) -> int:
    """Write ``target/<corruption>/<severity>/<name>`` for every image and cell that is not there yet; count the new.

    A file appears whole or not at all, and its bytes depend on its image, its number, its cell and ``settings`` only:
    whatever was written before an interruption stays, and the rest is made as if there had been none.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(target / ".lock", timeout=0):
            _claim(target, images, settings)
            return _write_all(images, target, cells, settings, workers, frost_textures, quiet)
    except Timeout:
        raise ValueError(f"another run is writing to {target}. Wait for it, or give another folder.") from None


def _write_all(
    images: Sequence[tuple[Path, str]],
    target: Path,
    cells: Sequence[Cell],
    settings: CopySettings,
    workers: int,
    frost_textures: str | None,
    quiet: bool,
) -> int:
    makers = [Corrupt(*cell, settings.seed, settings.table, frost_textures=frost_textures) for cell in cells]
    for maker in makers:  # whatever one of them lacks is known before the run
        maker(np.zeros((settings.size, settings.size, 3), dtype=np.uint8))
    parts = target / PARTS
    shutil.rmtree(parts, ignore_errors=True)  # halves of files that an interruption left
    parts.mkdir()
    jobs = [_Job(number, path, name, str(target), settings) for number, (path, name) in enumerate(images)]
    columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    written = 0
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
        bar = progress.add_task(f"{len(cells)} cells of each image", total=len(jobs))
        for count in _run(jobs, makers, workers):
            written += count
            progress.advance(bar)
    parts.rmdir()
    return written


@dataclass(frozen=True)
class _Job:
    number: int
    path: Path
    name: str
    target: str
    settings: CopySettings


def _run(jobs: Sequence[_Job], makers: Sequence[Corrupt], workers: int) -> Iterator[int]:
    if workers <= 1:
        for job in jobs:
            yield _write_cells(job, makers)
        return
    context = multiprocessing.get_context("spawn")  # threads of OpenCV and of the progress bar do not survive a fork
    with ProcessPoolExecutor(workers, context, initializer=_begin_worker) as pool:
        futures = [pool.submit(_write_cells, job, makers) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _begin_worker() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:  # a worker whose parent was killed would wait for ever
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)


def _write_cells(job: _Job, makers: Sequence[Corrupt]) -> int:
    """All missing cells of one image, which is decoded once."""
    places = [(maker, Path(job.target, maker.name, str(maker.severity), job.name)) for maker in makers]
    missing = [(maker, place) for maker, place in places if not place.is_file() or place.stat().st_size == 0]
    if not missing:
        return 0
    kept = job.settings
    picture = centre_crop(decode(job.path, "pil"), kept.resize, kept.size, InterpolationMode.BILINEAR)
    clean = as_tensor(picture).permute(1, 2, 0).contiguous().numpy()
    for maker, place in missing:
        buffer = BytesIO()
        Image.fromarray(maker(clean, job.number)).save(buffer, "JPEG", quality=kept.quality, optimize=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        half = Path(job.target, PARTS, f"{job.number}-{maker.name}-{maker.severity}")
        half.write_bytes(buffer.getvalue())  # not synced: a file that a crash left empty is made again
        half.replace(place)
    return len(missing)


def _claim(target: Path, images: Sequence[tuple[Path, str]], settings: CopySettings) -> None:
    """Write down what the folder is made from and with; refuse to go on with anything else."""
    if not images:
        raise ValueError("no images found among the clean ones; nothing to corrupt.")
    wanted = _manifest(images, settings)
    if (found := read_manifest(target)) is not None:
        changed = [key for key in wanted if found.get(key) != wanted[key]]
        if changed:
            changes = "; ".join(f"{key} was {found.get(key)!r}, is {wanted[key]!r}" for key in changed)
            raise ValueError(
                f"{target} was started with other settings: {changes}. Give the same settings and images, "
                "or another folder."
            )
        return
    if any(not entry.name.startswith(".") for entry in target.iterdir()):
        raise ValueError(f"{target} is not empty and was not made by this command. Give an empty folder with --to.")
    replace_file(target / MANIFEST, json.dumps(wanted, indent=2) + "\n")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What a folder of copies says that it was made with; none if it was not made here."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}. Generate the copies again, or restore the file.") from error
    if not isinstance(found, dict) or found.get("corruptions") != "generated":
        raise ValueError(f"{path} does not say how the copies were made. Generate them again, or restore the file.")
    return found


def _manifest(images: Sequence[tuple[Path, str]], settings: CopySettings) -> Mapping[str, Any]:
    listing = Listing(
        Path(),
        [name for _, name in images],
        np.array([path.stat().st_size for path, _ in images], dtype=np.int64),
        np.zeros(len(images), dtype=np.int64),
    )
    libraries = {name: version(name) for name in ("numpy", "scipy", "opencv-python-headless", "pillow")}
    return {
        "corruptions": "generated",
        "images": len(images),
        "files": listing.digest(),
        **asdict(settings),
    } | libraries

"""Photographs from file to batch against torchvision's PIL pipeline, and all test cells in one pass
against one by one.

The photographs are JPEG files as they are, never encoded again: those of natural size that come
with scikit-image and matplotlib, or up to 24 of a ``folder`` of one's own. The rows name them.
"""

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from PIL import Image
from torch import Tensor
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import InterpolationMode, v2

from benchmarks.timing import interleaved, on_threads
from chaosgate.corruptions import PAPER
from chaosgate.data import Cell, ImageNetC, Sample
from chaosgate.data.augment import centre_crop, resized_crop_and_flip
from chaosgate.data.decoding import decode
from chaosgate.data.imagenet import wnids
from chaosgate.data.imagenet_c import CopySettings, write_copies
from chaosgate.data.listing import image_files
from chaosgate.data.photos import IMAGENET_MEAN, IMAGENET_STD
from chaosgate.data.samples import as_tensor, lent_streams, normalised, sample_generator

_BUNDLED = (("skimage", "data/rocket.jpg"), ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"))
_MOST = 24
_BILINEAR = InterpolationMode.BILINEAR


def run(
    threads: int = 1,
    repeats: int = 7,
    folder: str | None = None,
    images_per_cell: int = 48,
    workers: int = 2,
    corruptions: Sequence[str] = PAPER,
) -> list[dict[str, Any]]:
    """Median milliseconds per image (transforms) and per test (cells), ours and the peer taking
    turns.

    Workers hand over bytes and the device normalises, so the rows end in uint8; those marked
    *normalised* add the float conversion to both sides. ``within_1`` is the share of values within
    one grey level of the peer's, and ``pil_equal`` whether ``decoder: pil`` gives the peer's very
    pixels. ``decode_ms`` and ``reference_decode_ms`` are what both spend in libjpeg-turbo;
    ``bound`` is the ratio if all else cost us nothing: with exact pixels no view can do better. The
    last row tests the paper's 35 cells with a linear classifier: one pass against 35 calls of
    ``Trainer.test``. What a call costs beside its images does not depend on how many they are:
    ``call_ms`` is that cost.
    """
    with on_threads(threads), tempfile.TemporaryDirectory() as place:
        paths = _photos(folder)
        rows = [_train(paths, repeats, normalised) for normalised in (False, True)]
        rows += [_eval(paths, repeats, normalised) for normalised in (False, True)]
        decoding = interleaved(
            {
                "ours": lambda: [decode(path) for path in paths],
                "peer": lambda: [pil_loader(str(path)) for path in paths],
            },
            repeats,
        )
        ours, peer = (decoding[name] / len(paths) for name in ("ours", "peer"))
        for row in rows:
            row |= {
                "decode_ms": ours,
                "reference_decode_ms": peer,
                "bound": row["reference_ms"] / ours,
            }
            row["photographs"] = _named(paths)
        rows.append(
            _cells(paths, Path(place), max(1, repeats // 5), images_per_cell, workers, corruptions)
        )
    return rows


def _photos(folder: str | None) -> list[Path]:
    if folder is not None:
        files = [
            path
            for path in image_files(Path(folder).expanduser())
            if path.suffix.lower() in (".jpg", ".jpeg")
        ]
        if not files:
            raise ValueError(f"no JPEG files below {folder}.")
        return files[:: -(-len(files) // _MOST)]
    specs = [(find_spec(package), place) for package, place in _BUNDLED]
    places = [Path(str(spec.origin)).parent / place for spec, place in specs if spec is not None]
    found = [place for place in places if place.is_file()]
    if not found:
        raise ValueError(
            "neither scikit-image nor matplotlib is installed; give a folder of photographs."
        )
    return found * (_MOST // len(found))


def _named(paths: Sequence[Path]) -> str:
    sizes = {}
    for path in paths:
        with Image.open(path) as image:
            sizes[path.name] = image.size
    shown = ", ".join(
        f"{name} {width}x{height}" for name, (width, height) in list(sizes.items())[:3]
    )
    return shown + (f" and {len(sizes) - 3} more" if len(sizes) > 3 else "")


def _train(paths: Sequence[Path], repeats: int, normalised: bool) -> dict[str, Any]:
    theirs = v2.Compose(
        [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), *_ending(normalised)]
    )
    rounds = iter(range(1_000_000))

    def ours() -> None:
        turn = next(rounds)
        for index, path in enumerate(paths):
            generator = sample_generator(0, turn, index)
            cut = resized_crop_and_flip(
                decode(path), generator, 224, (0.08, 1.0), _BILINEAR, flip=True
            )
            _normalise(as_tensor(cut), normalised)

    def peer() -> None:
        with lent_streams(next(rounds)):
            for path in paths:
                theirs(pil_loader(str(path)))

    return _row(
        "train transform",
        normalised,
        interleaved({"ours": ours, "peer": peer}, repeats),
        len(paths),
    )


def _eval(paths: Sequence[Path], repeats: int, normalised: bool) -> dict[str, Any]:
    theirs = v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224), *_ending(normalised)])
    view = partial(centre_crop, resize=256, size=224, interpolation=_BILINEAR)

    def through(call: Callable[[Path], object]) -> None:
        for path in paths:
            call(path)

    contenders = {
        "ours": lambda: through(lambda path: _normalise(as_tensor(view(decode(path))), normalised)),
        "peer": lambda: through(lambda path: theirs(pil_loader(str(path)))),
    }
    row = _row("eval transform", normalised, interleaved(contenders, repeats), len(paths))
    if not normalised:
        gaps = [
            (as_tensor(view(decode(path))).int() - theirs(pil_loader(str(path))).int()).abs()
            for path in paths
        ]
        row["within_1"] = float((torch.stack(gaps) <= 1).float().mean())
        exact = all(
            torch.equal(as_tensor(view(decode(path, "pil"))), theirs(pil_loader(str(path))))
            for path in paths
        )
        row["pil_equal"] = exact
    return row


def _ending(normalised: bool) -> list[Any]:
    if not normalised:
        return [v2.PILToTensor()]
    return [
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
    ]


def _normalise(image: Tensor, wanted: bool) -> Tensor:
    return normalised(image, IMAGENET_MEAN, IMAGENET_STD) if wanted else image


def _row(name: str, normalised: bool, times: dict[str, float], images: int) -> dict[str, Any]:
    ours, peer = times["ours"] / images, times["peer"] / images
    label = f"{name}, normalised" if normalised else name
    return {"what": label, "ours_ms": ours, "reference_ms": peer, "ratio": peer / ours}


class _Linear(pl.LightningModule):
    """As little work as a classifier can be, so that what is timed is the data."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3, 1000))
        self.counted = 0

    def test_step(self, batch: Sample, batch_idx: int) -> None:
        logits = batch.image.mean((2, 3)) @ self.weight
        self.counted += int((logits.argmax(1) >= 0).sum())


def _test(data: ImageNetC) -> int:
    model = _Linear()
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    pl.Trainer(enable_checkpointing=False, **quiet).test(model, data, verbose=False)
    return model.counted


def _cells(
    paths: Sequence[Path],
    place: Path,
    repeats: int,
    count: int,
    workers: int,
    corruptions: Sequence[str],
) -> dict[str, Any]:
    cells = [Cell(name, severity) for name in corruptions for severity in range(1, 6)]
    named = [
        (paths[n % len(paths)], f"{wnids()[n % 8]}/ILSVRC2012_val_{n:08d}.JPEG")
        for n in range(count)
    ]
    write_copies(sorted(named, key=lambda pair: pair[1]), place / "cells", cells, CopySettings())

    def module(corruptions: Sequence[str], severities: Sequence[Any]) -> ImageNetC:
        return ImageNetC(
            str(place / "cells"),
            corruptions=list(corruptions),
            severities=severities,
            eval_batch_size=32,
            num_workers=workers,
        )

    def one_pass() -> None:
        assert _test(module(corruptions, range(1, 6))) == len(cells) * count

    def one_by_one() -> None:
        assert (
            sum(_test(module([cell.corruption], [cell.severity])) for cell in cells)
            == len(cells) * count
        )

    with _silence():
        times = interleaved({"ours": one_pass, "peer": one_by_one}, repeats)
    return {
        "what": f"test of {len(cells)} cells x {count} images, {workers} workers",
        "ours_ms": times["ours"],
        "reference_ms": times["peer"],
        "ratio": times["peer"] / times["ours"],
        "call_ms": (times["peer"] - times["ours"]) / (len(cells) - 1),
    }


@contextmanager
def _silence() -> Iterator[None]:
    """Lightning greets at every Trainer, and the set is a small part of ImageNet-C."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)

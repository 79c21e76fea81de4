"""Where a number came from: versions, commit, processor, hashes, weights, transform of an image. Needs no torch."""

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from chaosgate.data.files.atomic import file_hash

_PACKAGES = ("torch", "torchvision", "timm", "lightning", "torchmetrics", "numpy")


@lru_cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can move a number."""
    return {"python": platform.python_version(), **{name: installed(name) for name in ("chaosgate", *_PACKAGES)}}


def installed(package: str) -> str:
    """The version of a package, or that it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@lru_cache
def processor() -> str:
    """The model of the processor: sums differ in their last digits from one to another, and trainings amplify that."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@lru_cache
def commit() -> str | None:
    """The commit of the source tree this code runs from, with ``+`` if files differ from it; None outside of git."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", here, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def tensor_hash(tensors: Mapping[str, Any]) -> str:
    """SHA-256 of named tensors: names, types, shapes and values, whatever file they came in."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().cpu().contiguous().flatten()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(memoryview(array.float().numpy()) if array.dtype.itemsize == 2 else memoryview(array.numpy()))
    return digest.hexdigest()


def weights_of(checkpoint: Any, module: Any, run: Path) -> dict[str, str | None]:
    """Which weights were tested: the checkpoint given to the test, the file the model was built from, or timm's.

    ``checkpoint`` is the SHA-256 of the file; of weights that timm fetched, that of the tensors themselves.
    ``weights_file`` is relative to the run directory for a checkpoint of the run, and else as it was given.
    """
    file = checkpoint or module.hparams.get("checkpoint")
    if file:
        inside = Path(file).absolute().is_relative_to(run.absolute())
        where = Path(file).absolute().relative_to(run.absolute()).as_posix() if inside else str(file)
        return {"checkpoint": file_hash(file), "checkpoint_name": Path(file).name, "weights_file": where}
    if module.hparams.get("pretrained"):
        network: Any = module.model
        source: dict[str, Any] = getattr(network, "pretrained_cfg", None) or {}
        name = f"timm {source.get('architecture')}.{source.get('tag')}"
        return {"checkpoint": tensor_hash(network.state_dict()), "checkpoint_name": name, "weights_file": None}
    return {"checkpoint": None, "checkpoint_name": None, "weights_file": None}


def transform_of(data: Any) -> dict[str, Any]:
    """What was done to an image before the network saw it, as far as the data module says."""
    names = ("mean", "std", "image_size", "eval_resize", "interpolation", "decoder")
    found = {name: getattr(data, name) for name in names if getattr(data, name, None) is not None}
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else getattr(value, "value", value)


def config_hash(config: Any, digits: int = 8) -> str:
    """A short hash of plain data (what JSON can hold), independent of the order of keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:digits]


DIGEST = "digest"


def with_digest(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry, to be written as JSON, with a hash of the rest of it, so that a change on the disk is noticed."""
    return {**entry, DIGEST: _hash_of_rest(json.loads(json.dumps(entry)))}


def is_unchanged(entry: Mapping[str, Any]) -> bool:
    """Whether an entry says what was written; one without a digest is of an earlier version and is believed."""
    return DIGEST not in entry or entry[DIGEST] == _hash_of_rest(entry)


def _hash_of_rest(entry: Mapping[str, Any]) -> str:
    return config_hash({key: value for key, value in entry.items() if key != DIGEST}, digits=16)

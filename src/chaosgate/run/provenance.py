"""Where a number came from: versions, commit, processor, weights, transform. Needs no torch."""

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

from chaosgate.data.atomic import file_hash

_PACKAGES = ("chaosgate", "torch", "torchvision", "timm", "lightning", "torchmetrics", "numpy")
_TRANSFORM = ("mean", "std", "image_size", "eval_resize", "interpolation", "decoder")
DIGEST = "digest"


@lru_cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a number."""
    return {"python": platform.python_version(), **{name: installed(name) for name in _PACKAGES}}


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@lru_cache
def processor() -> str:
    """Model of the processor: the last digits of sums differ between processors."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@lru_cache
def commit() -> str | None:
    """Commit of this source tree, with ``+`` if files differ from it; None outside of git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", ".")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def tensor_hash(tensors: Mapping[str, Any]) -> str:
    """SHA-256 of named tensors: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().cpu().contiguous().flatten()
        array = array.float() if array.dtype.itemsize == 2 else array  # NumPy has no bfloat16
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(memoryview(array.numpy()))
    return digest.hexdigest()


def weights_of(checkpoint: Any, module: Any, run: Path) -> dict[str, str | None]:
    """Which weights were tested: the checkpoint, or the file or timm weights of the model.

    ``checkpoint`` is the SHA-256 of the file, or of the tensors if timm downloaded them.
    ``weights_file`` is relative to the run directory for a checkpoint of the run.
    """
    weights = checkpoint or getattr(module, "weights", None)
    digest = name = file = None
    if weights == "timm":
        source: dict[str, Any] = getattr(module.model, "pretrained_cfg", None) or {}
        digest = tensor_hash(module.model.state_dict())
        name = f"timm {source.get('architecture')}.{source.get('tag')}"
    elif weights:
        path, digest = Path(weights).absolute(), file_hash(weights)
        inside = path.is_relative_to(run.absolute())
        name = path.name
        file = path.relative_to(run.absolute()).as_posix() if inside else str(weights)
    return {"checkpoint": digest, "checkpoint_name": name, "weights_file": file}


def transform_of(data: Any) -> dict[str, Any]:
    """What was done to an image before the network saw it, as far as the data module says."""
    found = {name: getattr(data, name, None) for name in _TRANSFORM}
    return {
        name: list(value) if isinstance(value, tuple) else getattr(value, "value", value)
        for name, value in found.items()
        if value is not None
    }


def config_hash(config: Any, digits: int = 8) -> str:
    """A short hash of plain data (what JSON can hold), independent of the order of keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:digits]


def with_digest(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with a hash of the rest of it, so that a change on the disk is noticed."""
    return {**entry, DIGEST: _hash_of_rest(json.loads(json.dumps(entry)))}


def is_unchanged(entry: Mapping[str, Any]) -> bool:
    """Whether the digest is right; entries of earlier versions have none."""
    return DIGEST not in entry or entry[DIGEST] == _hash_of_rest(entry)


def _hash_of_rest(entry: Mapping[str, Any]) -> str:
    return config_hash({key: value for key, value in entry.items() if key != DIGEST}, digits=16)

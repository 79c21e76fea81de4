"""Where a number came from: versions, commit, hashes."""

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "torchvision", "timm", "lightning", "torchmetrics", "numpy")


@lru_cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can move a number."""
    found = {"python": platform.python_version()}
    for name in ("chaosgate", *_PACKAGES):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


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


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file, as hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tensor_hash(tensors: Mapping[str, Any]) -> str:
    """SHA-256 of named tensors: names, types, shapes and values, whatever file they came in."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().cpu().contiguous().flatten()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(memoryview(array.float().numpy()) if array.dtype.itemsize == 2 else memoryview(array.numpy()))
    return digest.hexdigest()


def config_hash(config: Any, digits: int = 8) -> str:
    """A short hash of plain data (what JSON can hold), independent of the order of keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:digits]

"""The three kinds of 8-bit image that users hold (NumPy, torch, Pillow) and the one that the corruptions work on."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from chaosgate.corruptions.levels import Bytes

AnyImage = TypeVar("AnyImage", Bytes, torch.Tensor, Image.Image)


def as_array(image: Any) -> tuple[Bytes, Callable[[Bytes], Any]]:
    """One image as a contiguous (H, W, C) array with one or three channels, and the way back to its own kind."""
    if isinstance(image, Image.Image):
        if image.mode not in ("L", "RGB"):
            raise ValueError(f"a Pillow image of mode {image.mode!r}; corruptions take 'L' or 'RGB'. Convert it first.")
        array, back = as_array(np.asarray(image))
        return array, lambda result: Image.fromarray(back(result))
    if isinstance(image, torch.Tensor):
        return _from_tensor(image)
    array = np.asarray(image)
    if array.ndim not in (2, 3):
        raise ValueError(f"an image of shape {array.shape}; corruptions take (H, W), (H, W, 1) or (H, W, 3).")
    shape = array.shape
    return as_stack(array[None])[0], lambda result: result.reshape(shape)


def as_stack(images: Any) -> Bytes:
    """A stack (N, H, W) or (N, H, W, C) as a contiguous (N, H, W, C) array."""
    stack = np.asarray(images)
    if stack.dtype != np.uint8:
        raise TypeError(f"images of type {stack.dtype}; corruptions are defined on uint8 grey levels 0..255.")
    if stack.ndim == 3:
        stack = stack[..., None]
    if stack.ndim != 4 or stack.shape[3] not in (1, 3):
        shape = np.shape(images)
        raise ValueError(
            f"images of shape {shape[1:]} in a stack of {shape[0] if shape else 0}; corruptions take (H, W), (H, W, 1) "
            "or (H, W, 3), channels last (torch tensors: first)."
        )
    if 0 in stack.shape[1:3]:
        raise ValueError(f"images of {stack.shape[1]} x {stack.shape[2]} pixels; there is nothing to corrupt.")
    return np.ascontiguousarray(stack)


def _from_tensor(image: torch.Tensor) -> tuple[Bytes, Callable[[Bytes], torch.Tensor]]:
    if image.dtype != torch.uint8:
        raise TypeError(f"a tensor of type {image.dtype}; corruptions are defined on uint8 grey levels 0..255.")
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[0] not in (1, 3)):
        raise ValueError(f"a tensor of shape {tuple(image.shape)}; corruptions take (H, W), (1, H, W) or (3, H, W).")
    planes = image.detach().cpu().reshape(-1, *image.shape[-2:])

    def back(result: Bytes) -> torch.Tensor:
        return torch.from_numpy(result.transpose(2, 0, 1).copy()).reshape(image.shape).to(image.device)

    return as_stack(planes.permute(1, 2, 0).numpy()[None])[0], back

"""``chaosgate export``: a trained network as a file for timm, onnxruntime or plain PyTorch."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from chaosgate.cli.sources import Source

_TOLERANCE = 1e-5  # of the largest logit, between the network here and the network in the file
_TESTED = "corruption severity n top1 top5 nll ece gap brier nll_T ece_T".split()


def export(network: str, *, to: Path) -> None:
    """Write the network of a run or a checkpoint to a file that does not need this library.

    The suffix of the file decides the format:

      .safetensors  weights; timm.create_model(NAME, checkpoint_path=FILE, num_classes=N) loads them
      .pth          the same weights as a plain state_dict of torch
      .onnx         the network, for any batch size (needs the extra 'export')

    FILE.json next to it has architecture, classes, normalization ((pixels / 255 - mean) / std), the
    fitted temperature (softmax(logits / temperature)), and the test results of exactly these
    weights. What is not known is null. An ONNX file is compared with the network before it is
    written. An existing file is never overwritten.

    Examples:
      chaosgate export runs/MY_RUN --to model.onnx               the selected checkpoint of a run
      chaosgate export runs/MY_RUN/checkpoints/last.ckpt --to model.safetensors

    Args:
        network: A run directory, or a checkpoint file of a run.
        to: File to write, ending in .safetensors, .onnx or .pth.
    """
    from json import dumps

    import torch
    from safetensors.torch import save_file

    from chaosgate.cli.sources import find_network
    from chaosgate.inject.dryrun import example_input

    beside = to.with_name(f"{to.name}.json")
    if to.suffix not in (".safetensors", ".pth", ".onnx"):
        raise ValueError(f"--to {to}: the suffix decides the format: .safetensors, .onnx or .pth.")
    if to.exists() or beside.exists():
        raise FileExistsError(f"{to} or {beside} exists already; give another --to.")
    source = find_network(network)
    if source.file is None:
        raise FileNotFoundError(f"no run directory or checkpoint file {network}.")
    about = _about(source)
    channels, *sides = example_input(source.model).shape[1:]
    side = (about["normalisation"] or {}).get("image_size")
    shape = (channels, *([side, side] if side else sides))
    about["input"] = {"name": "image", "shape": ["batch", *shape], "dtype": "float32"}
    state = {key: value.clone() for key, value in source.model.state_dict().items()}
    if to.suffix == ".onnx":
        to.write_bytes(_onnx(source.model, shape))
    elif to.suffix == ".safetensors":
        save_file(state, to)
    else:
        torch.save(state, to)
    beside.write_text(dumps(about, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(f"{to} and {beside}: {source.file}, for images of {'x'.join(map(str, shape))}")


def _onnx(model: "nn.Module", shape: tuple[int, ...]) -> bytes:
    """The network as ONNX, compared with this one on another batch size."""
    import warnings

    import onnxruntime
    import torch

    given: dict[str, Any] = {"input_names": ["image"], "output_names": ["logits"], "verbose": False}
    given |= {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "dynamo": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program: Any = torch.onnx.export(model, (torch.randn(2, *shape),), **given)
    content: bytes = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    images = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        here = model(images)
    there = torch.from_numpy(session.run(["logits"], {"image": images.numpy()})[0])
    off, scale = (here - there).abs().max().item(), max(1.0, here.abs().max().item())
    if not off <= _TOLERANCE * scale:
        raise RuntimeError(
            f"the ONNX network differs from the checkpoint by {off:.2g}, with logits up to "
            f"{scale:.2g}; nothing was written."
        )
    return content


def _about(source: "Source") -> dict[str, Any]:
    """What one needs to use the network. What is not known is None."""
    from contextlib import suppress

    from chaosgate.run.files import file_hash
    from chaosgate.run.identity import transform_of, versions

    assert source.file is not None
    data, digest = source.data, file_hash(source.file)
    every = source.run.rows() if source.run else []
    rows = [row for row in every if row["checkpoint"] == digest]
    last = rows[-1] if rows else {}
    tested = [{k: v for k in _TESTED if (v := row.get(k)) is not None and v == v} for row in rows]
    with suppress(ValueError, OSError, AttributeError):  # its images are not on this machine
        data.setup("validate")
    classes = getattr(data, "class_names", ())
    return {
        "network": {"timm_name": source.backbone, "arguments": source.arguments},
        "classes": list(classes) if len(classes) == source.model.num_classes else None,
        "normalisation": last.get("transform") or transform_of(data) or None,
        "temperature": last.get("temperature"),
        "test": tested or None,
        "source": {"checkpoint": source.file.name, "sha256": digest, "versions": versions()},
    }

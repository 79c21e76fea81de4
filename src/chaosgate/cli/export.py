"""``chaosgate export``: a trained network as a file for timm, onnxruntime or plain PyTorch."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import Path_fc, PositiveInt

if TYPE_CHECKING:
    from torch import nn

    from chaosgate.data.module import ImageData

TOLERANCE = 1e-5  # of the largest logit, between the network here and the network in the file
_SCALED = "(pixels / 255 - mean) / std, per channel"
_METRICS = ("top1", "top5", "nll", "ece", "gap", "brier", "nll_T", "ece_T")


def export(
    network: Path,
    *,
    to: Path_fc,
    backbone: str | None = None,
    num_classes: PositiveInt | None = None,
    in_chans: PositiveInt | None = None,
    image_size: PositiveInt | None = None,
) -> None:
    """Write the network of a run or a checkpoint to a file that does not need this library.

    The suffix of the file decides the format:

      .safetensors  weights; timm.create_model(NAME, checkpoint_path=FILE, num_classes=N) loads them
      .pth          the same weights as a plain state_dict of torch
      .onnx         the network, for any batch size (needs the extra 'export')

    FILE.json next to it has architecture, classes, normalization, fitted temperature, and the test
    results of exactly these weights. An ONNX file is compared with the network before it is
    written. An existing file is never overwritten.

    Examples:
      chaosgate export runs/MY_RUN --to model.onnx               the selected checkpoint of a run
      chaosgate export runs/MY_RUN/checkpoints/last.ckpt --to model.safetensors
      chaosgate export weights.ckpt --backbone resnet50 --num_classes 37 --to model.pth

    Args:
        network: A run directory, or a checkpoint file.
        to: File to write, ending in .safetensors, .onnx or .pth.
        backbone: timm name of the network, if the checkpoint file does not state it.
        num_classes: Classes of the network, if the file does not state it.
        in_chans: Channels of the images, if the file does not state it.
        image_size: Side in pixels of the ONNX input (that of the run, or of the network).
    """
    import json
    from importlib import import_module

    from chaosgate.cli.probe_source import find_network, run_data
    from chaosgate.data.files.atomic import file_hash, replace_file
    from chaosgate.inject.stages import example_input
    from chaosgate.run.directory import RunDirectory

    target, path = Path(str(to)).expanduser(), network.expanduser()
    beside = target.with_name(f"{target.name}.json")
    if target.suffix not in (".safetensors", ".pth", ".onnx"):
        raise ValueError(
            f"--to {to}: the suffix decides the format; use .safetensors, .onnx or .pth."
        )
    for file in (target, beside):
        if file.exists():
            raise FileExistsError(f"{file} exists already; remove it, or give another --to.")
    for package in ("onnx", "onnxscript", "onnxruntime") if target.suffix == ".onnx" else ():
        try:
            import_module(package)
        except ImportError:
            need = f"--to {to} needs {package}: pip install 'chaosgate[export]'."
            raise ImportError(need) from None
    run = RunDirectory(path if path.is_dir() else path.absolute().parent.parent)
    if not path.exists():
        raise FileNotFoundError(f"no run directory or checkpoint file {path}.")
    checkpoint = run.selected() if path.is_dir() else path
    of_run = run.config.is_file() and checkpoint.absolute().parent == run.checkpoints.absolute()
    model = find_network(str(checkpoint), backbone, False, num_classes, in_chans).model
    data, rows = None, []
    if of_run:
        rows = [row for row in run.rows() if row.get("checkpoint") == file_hash(checkpoint)]
        try:
            if (data := run_data(run.config)) is not None:
                data.setup("validate")
        except (ValueError, OSError):  # its images are not on this machine
            data = None
    channels, height, width = example_input(model).shape[1:]
    sizes = [(row.get("transform") or {}).get("image_size") for row in rows]
    side = image_size or next(filter(None, sizes), None) or getattr(data, "image_size", None)
    shape = (channels, int(side or height), int(side or width))
    content = _onnx(model, shape) if target.suffix == ".onnx" else _weights(model, target.suffix)
    about = _about(checkpoint, backbone, model, data, rows, shape)
    text = json.dumps(about, indent=1, allow_nan=False) + "\n"
    replace_file(target, content)
    replace_file(beside, text)
    print(f"{to}: {checkpoint}, for images of {'x'.join(map(str, shape))}")
    known = ("classes", "normalisation", "temperature", "test")
    print(f"{to}.json: {', '.join(key if about[key] else f'no {key}' for key in known)}")


def _weights(model: "nn.Module", suffix: str) -> bytes:
    from io import BytesIO

    import torch
    from safetensors.torch import save

    state = {
        name: value.detach().clone().contiguous() for name, value in model.state_dict().items()
    }
    if suffix == ".safetensors":
        return save(state)
    torch.save(state, buffer := BytesIO())
    return buffer.getvalue()


def _onnx(model: "nn.Module", shape: tuple[int, int, int]) -> bytes:
    """The network as ONNX, compared with this one on batches of several sizes."""
    import warnings
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    import onnxruntime
    import torch

    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")  # torch reports every step
        program = torch.onnx.export(
            model,
            (torch.randn(2, *shape),),
            dynamo=True,
            input_names=["image"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        images = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch))
        with torch.no_grad():
            here = model(images)
        there = torch.from_numpy(session.run(["logits"], {"image": images.numpy()})[0])
        off, scale = float((here - there).abs().max()), max(1.0, float(here.abs().max()))
        if not off <= TOLERANCE * scale:
            raise RuntimeError(
                f"the ONNX network differs from the checkpoint by {off:.2g}, with logits up to "
                f"{scale:.2g}. Nothing was written; export to .safetensors."
            )
    return content


def _about(
    checkpoint: Path,
    backbone: str | None,
    model: "nn.Module",
    data: "ImageData | None",
    rows: Sequence[dict[str, Any]],
    shape: tuple[int, int, int],
) -> dict[str, Any]:
    """What one needs to use the network. What is not known is None."""
    import math

    from chaosgate.data.files.atomic import file_hash
    from chaosgate.run.provenance import transform_of, versions
    from chaosgate.train.weights import read_checkpoint

    known: dict[str, Any] = read_checkpoint(checkpoint).get("hyper_parameters") or {}
    transform = (rows[-1].get("transform") if rows else None) or transform_of(data) or None
    origin, classes = type(model).__module__, int(model.num_classes)  # type: ignore[arg-type]
    names = list(getattr(data, "class_names", None) or ())
    fitted = next((row for row in reversed(rows) if row.get("temperature") is not None), None)
    arguments = {"num_classes": classes, "in_chans": shape[0]} | (known.get("backbone_args") or {})
    needs = None if origin.startswith("timm.") else f"import {origin}  # registers the name"
    temperature: dict[str, Any] | None = fitted and {
        "value": fitted["temperature"],
        "formula": "softmax(logits / value)",
        "fitted_on": f"{fitted['temperature_n']} images of {fitted['temperature_split']}",
    }
    cells = [
        {"corruption": row["corruption"], "severity": row["severity"], "n": int(row["n"])}
        | {key: v for key in _METRICS if (v := row.get(key)) is not None and math.isfinite(v)}
        | {"data": row.get("data")}
        for row in rows
    ]
    name = backbone or known.get("backbone")
    source: dict[str, Any] = {"checkpoint": checkpoint.name, "sha256": file_hash(checkpoint)}
    source |= {"versions": versions()}
    image = {"name": "image", "shape": ["batch", *shape], "layout": "NCHW", "dtype": "float32"}
    return {
        "network": {"timm_name": name, "arguments": arguments, "needs": needs},
        "input": image,
        "output": {"name": "logits", "shape": ["batch", classes]},
        "classes": names if len(names) == classes else None,
        "normalisation": transform and {"formula": _SCALED, **transform},
        "temperature": temperature,
        "test": cells or None,
        "source": source,
    }

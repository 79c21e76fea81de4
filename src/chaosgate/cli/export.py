"""``chaosgate export``: a trained network as a file for timm, onnxruntime or plain PyTorch."""

import argparse
import json
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from chaosgate.cli.flags import command_parser, output_file, run_command, whole
from chaosgate.cli.probe_source import find_network, run_data
from chaosgate.data.files.atomic import file_hash, replace_file
from chaosgate.data.module import ImageData
from chaosgate.inject.stages import example_input
from chaosgate.run.directory import RunDirectory
from chaosgate.run.provenance import transform_of, versions
from chaosgate.train.weights import read_checkpoint

DESCRIPTION = """\
Write the network of a run or of a checkpoint to a file that does not need this library. The ending of FILE decides:

  .safetensors  weights; timm.create_model(NAME, checkpoint_path=FILE, num_classes=N) loads them
  .pth          the same weights as a plain state_dict of torch
  .onnx         the network itself, for any batch size (needs onnx, onnxscript and onnxruntime: the extra 'export')

FILE.json beside it has what one needs to use the network: architecture, classes, normalisation, fitted temperature, and
the test numbers of exactly these weights. The file is read back and compared with the network before it gets its name;
an existing file is never overwritten.
"""

EXAMPLES = """\
examples:
  chaosgate export runs/MY_RUN --to model.onnx                          the selected checkpoint of a run
  chaosgate export runs/MY_RUN/checkpoints/last.ckpt --to model.safetensors
  chaosgate export weights.ckpt --backbone resnet50 --num-classes 37 --to model.pth
"""

TOLERANCE = 1e-5  # of the largest logit, between the network here and the network in the file
_BATCHES = (1, 3)  # batch sizes that an ONNX file is tried with; traced with another one
_NUMBERS = ("top1", "top5", "nll", "ece", "gap", "brier", "nll_T", "ece_T")
_OPTIONAL = ("onnx", "onnxscript", "onnxruntime")


def parser() -> argparse.ArgumentParser:
    options = command_parser("export", DESCRIPTION, EXAMPLES)
    add = options.add_argument
    add("network", metavar="CKPT", help="a run directory, or a checkpoint file")
    add("--to", type=output_file, required=True, metavar="FILE", help="where it goes: .safetensors, .onnx or .pth")
    add("--backbone", help="timm name of the network whose weights the file holds, if it does not say")
    add("--num-classes", type=whole(1), help="classes of the network, if the file does not say")
    add("--in-chans", type=whole(1), help="channels of the images, if the file does not say")
    add("--image-size", type=whole(1), help="side in pixels of the ONNX input (that of the run, or the network's own)")
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the command; 0, or 2 if something cannot be done."""
    return run_command(parser(), arguments, _run)


def _run(options: argparse.Namespace) -> int:
    given = {name: getattr(options, name) for name in ("backbone", "num_classes", "in_chans", "image_size")}
    print("\n".join(export(options.network, options.to, **given)))
    return 0


def export(
    network: str,
    to: Path,
    *,
    backbone: str | None = None,
    num_classes: int | None = None,
    in_chans: int | None = None,
    image_size: int | None = None,
) -> list[str]:
    """Write the two files; returns what to tell the user.

    Args:
        network: A run directory, or a checkpoint file.
        to: The file; its ending is one of ``.safetensors``, ``.pth`` and ``.onnx``.
        backbone: timm name of the network, if the checkpoint does not say.
        num_classes: Likewise.
        in_chans: Likewise.
        image_size: Side in pixels of the input of an ONNX file, and of the images that the file is checked with.
    """
    beside = to.with_name(f"{to.name}.json")
    if to.suffix not in (".safetensors", ".pth", ".onnx"):
        raise ValueError(f"--to {to}: the ending decides the format; give .safetensors, .onnx or .pth.")
    for path in (to, beside):
        if path.exists():
            raise FileExistsError(f"{path} exists already; remove it, or give another --to. Nothing was written.")
    _require_packages(to)
    run, file = _find(Path(network).expanduser())
    model = find_network(str(file), backbone, False, num_classes, in_chans).model
    data = None if run is None else _data(run)
    rows = [] if run is None else [r for r in run.rows() if r.get("checkpoint") == file_hash(file)]
    shape = _input_shape(model, data, rows, image_size)
    content, load_again = _CONTENTS[to.suffix](model, shape)
    difference = _compare(model, load_again, shape)
    about = _about(file, backbone, model, data, rows, shape) | {"largest_difference_of_a_logit": difference}
    said = json.dumps(about, indent=1, allow_nan=False) + "\n"
    to.parent.mkdir(parents=True, exist_ok=True)
    replace_file(to, content)
    replace_file(beside, said)
    return [
        f"{to}: {file}, for images of {'x'.join(map(str, shape))}; the logits differ by at most {difference:.1g} from "
        "those of the checkpoint",
        f"{beside}: " + ", ".join(f"no {key}" if about[key] is None else key for key in _SAID),
    ]


def _require_packages(to: Path) -> None:
    """Said before any work is done."""
    missing = []
    for name in _OPTIONAL if to.suffix == ".onnx" else ():
        try:
            import_module(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise ImportError(f"--to {to} needs {' and '.join(missing)}: pip install 'chaosgate[export]'.")


def _find(path: Path) -> tuple[RunDirectory | None, Path]:
    """The run, if there is one, and the checkpoint file."""
    if path.is_dir():
        run = RunDirectory(path)
        return run, run.selected()
    if not path.is_file():
        raise FileNotFoundError(f"no run directory or checkpoint file {path}.")
    run = RunDirectory(path.absolute().parent.parent)
    return (run if run.config.is_file() and path.absolute().parent == run.checkpoints else None), path


def _data(run: RunDirectory) -> ImageData | None:
    """The run's data, ready to say what its images and classes are; None if its files are not on this machine."""
    try:
        data = run_data(run.config)
        if data is not None:
            data.setup("validate")
    except (ValueError, OSError):
        return None
    return data


def _input_shape(
    model: nn.Module, data: ImageData | None, rows: Sequence[dict[str, Any]], image_size: int | None
) -> tuple[int, int, int]:
    """Channels, height and width of an image: as asked, as in the run, or what the network was made for."""
    channels, height, width = example_input(model).shape[1:]
    tested = next(
        (row["transform"]["image_size"] for row in rows if "image_size" in (row.get("transform") or {})), None
    )
    side = image_size or tested or getattr(data, "image_size", None)
    return (channels, height, width) if side is None else (channels, int(side), int(side))


def _safetensors(model: nn.Module, shape: tuple[int, int, int]) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    content = save({name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()})
    return content, partial(_run_state, model, lambda: load(content))


def _pth(model: nn.Module, shape: tuple[int, int, int]) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    buffer = BytesIO()
    torch.save(dict(model.state_dict()), buffer)
    content = buffer.getvalue()
    return content, partial(_run_state, model, lambda: torch.load(BytesIO(content), weights_only=True))


def _run_state(model: nn.Module, read: Callable[[], dict[str, Tensor]], images: Tensor) -> Tensor:
    """Logits of the network with nothing but the weights of the file."""
    return torch.func.functional_call(model, read(), (images,), strict=True)  # type: ignore[no-any-return]


def _onnx(model: nn.Module, shape: tuple[int, int, int]) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    import onnxruntime

    said = StringIO()
    with warnings.catch_warnings(), redirect_stdout(said), redirect_stderr(said):  # it reports every step
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            (torch.randn(2, *shape),),
            dynamo=True,
            input_names=["image"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    if program is None:
        raise RuntimeError(f"torch.onnx could not export {type(model).__name__}. Export to .safetensors instead.")
    content = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda images: torch.from_numpy(session.run(["logits"], {"image": images.numpy()})[0])


_CONTENTS = {".safetensors": _safetensors, ".pth": _pth, ".onnx": _onnx}


def _compare(model: nn.Module, again: Callable[[Tensor], Tensor], shape: tuple[int, int, int]) -> float:
    """Largest difference of a logit between the network and the file, on random images in batches of several sizes."""
    worst = 0.0
    with torch.no_grad():
        for batch in _BATCHES:
            images = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch))
            here, there = model(images), again(images)
            off = float((here - there).abs().max())
            scale = max(1.0, float(here.abs().max()))
            if here.shape != there.shape or not off <= TOLERANCE * scale:
                raise RuntimeError(
                    f"the exported network differs from the checkpoint: by {off:.2g} with logits up to {scale:.2g}, on "
                    f"{batch} random image(s). Nothing was written; export to another format."
                )
            worst = max(worst, off)
    return worst


_SAID = ("classes", "normalisation", "temperature", "test")


def _about(
    file: Path,
    backbone: str | None,
    model: nn.Module,
    data: ImageData | None,
    rows: Sequence[dict[str, Any]],
    shape: tuple[int, int, int],
) -> dict[str, Any]:
    """Plain data that lets somebody use the network. What is not known is null."""
    known: dict[str, Any] = read_checkpoint(file).get("hyper_parameters") or {}
    transform = (rows[-1].get("transform") if rows else None) or transform_of(data) or None
    origin = type(model).__module__
    fitted = next((row for row in reversed(rows) if row.get("temperature") is not None), None)
    return {
        "network": {
            "timm_name": backbone or known.get("backbone"),
            "arguments": {"num_classes": _classes(model), "in_chans": shape[0], **(known.get("backbone_args") or {})},
            "needs": None if origin.startswith("timm.") else f"import {origin}  # registers the name with timm",
        },
        "input": {"name": "image", "shape": ["batch", *shape], "layout": "NCHW", "dtype": "float32"},
        "output": {"name": "logits", "shape": ["batch", _classes(model)]},
        "classes": _class_names(model, data),
        "normalisation": transform and {"formula": "(pixels / 255 - mean) / std, per channel", **transform},
        "temperature": fitted
        and {
            "value": fitted["temperature"],
            "formula": "softmax(logits / value)",
            "fitted_on": f"{fitted['temperature_n']} images of the {fitted['temperature_split']} split",
        },
        "test": [_cell(row) for row in rows] or None,
        "source": {"checkpoint": file.name, "sha256": file_hash(file), "versions": versions()},
    }


def _cell(row: dict[str, Any]) -> dict[str, Any]:
    """Numbers that exist: fewer than five classes have no Top-5, and JSON has no nan."""
    return {
        "corruption": row["corruption"],
        "severity": row["severity"],
        "n": int(row["n"]),
        **{name: row[name] for name in _NUMBERS if row.get(name) is not None and math.isfinite(row[name])},
        "data": row.get("data"),
    }


def _classes(model: nn.Module) -> int:
    known: Any = model
    return int(known.num_classes)


def _class_names(model: nn.Module, data: ImageData | None) -> list[str] | None:
    """In the order of the logits; None if they are not known."""
    names = getattr(data, "class_names", None)
    return list(names) if names and len(names) == _classes(model) else None

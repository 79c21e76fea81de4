"""``chaosgate predict``: one line per test image, as CSV or Parquet."""

import csv
import io
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from chaosgate.data.files.atomic import replace_file
from chaosgate.data.pipeline.samples import as_sample
from chaosgate.inject.callback import NoiseInjection
from chaosgate.run.directory import RunDirectory
from chaosgate.run.temperature import from_all_processes, order_of_images

_ENDINGS = (".csv", ".parquet")


def check_output(output: str | None) -> None:
    """Refuse a file that predictions cannot be written to, before they are made."""
    ending = Path(output).suffix if output is not None else ".csv"
    if ending not in _ENDINGS:
        raise ValueError(f"--output {output}: give a file that ends in {' or '.join(_ENDINGS)}.")
    if ending == ".parquet" and find_spec("pyarrow") is None:
        raise ImportError(f"--output {output} needs pyarrow: pip install pyarrow, or give a .csv file.")


class WritePredictions(Callback):
    """Write index, path (where there is one), label, prediction, confidence and probabilities of every test image.

    Monte Carlo prediction (``noise.monte_carlo``) adds the columns of its uncertainty. On several processes the first
    one writes for all, each image once and in the order of the test set.

    Args:
        output: A file that ends in ``.csv`` or ``.parquet``; ``predictions.csv`` in the run directory if not given.
    """

    def __init__(self, output: str | None = None) -> None:
        check_output(output)
        self.output = output
        self.said = ""
        self._kept: list[tuple[Tensor, ...]] = []
        self._spread: tuple[str, ...] = ()

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *unused: Any
    ) -> None:
        batch = as_sample(batch)
        spread = next((one.spread for one in NoiseInjection.of(trainer) if one.spread), {})
        self._spread = tuple(spread)
        columns = (batch.index, batch.target, outputs, *(spread[name].to(outputs.device) for name in spread))
        self._kept.append(tuple(from_all_processes(column) for column in columns))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero or not self._kept:
            return
        index, *columns = (torch.cat(part) for part in zip(*self._kept, strict=True))
        order = order_of_images(index)
        table = dict(_columns(trainer, index[order], [column[order] for column in columns], self._spread))
        path = Path(self.output) if self.output is not None else RunDirectory.of(trainer).predictions
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _parquet(table) if path.suffix == ".parquet" else _csv(table))
        self.said = f"{len(order)} predictions in {path}"


def _columns(
    trainer: Trainer, index: Tensor, columns: list[Tensor], spread: tuple[str, ...]
) -> Iterator[tuple[str, list[Any]]]:
    target, probabilities, *values = columns
    yield "index", index.tolist()
    listing = (getattr(trainer.datamodule, "listings", None) or {}).get("test")  # type: ignore[attr-defined]
    if listing is not None:
        yield "path", [str(listing.names[i]) for i in index.tolist()]
    confidence, prediction = probabilities.max(-1)
    yield "label", target.tolist()
    yield "prediction", prediction.tolist()
    yield "confidence", confidence.tolist()
    for name, value in zip(spread, values, strict=True):
        yield name, value.tolist()
    for k, column in enumerate(probabilities.T):
        yield f"p{k}", column.tolist()


def _csv(table: dict[str, list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return text.getvalue()


def _parquet(table: dict[str, list[Any]]) -> Any:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    def write(file: IO[bytes]) -> None:
        pyarrow.parquet.write_table(pyarrow.table(table), file)

    return write

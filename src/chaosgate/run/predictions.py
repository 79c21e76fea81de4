"""``chaosgate predict``: one line per test image, as CSV or Parquet."""

import csv
import io
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from chaosgate.data.samples import as_sample
from chaosgate.inject.callback import NoiseInjection
from chaosgate.run.directory import RunDirectory, replace_file
from chaosgate.run.temperature import gather, order_of_images


def check_output(output: str | None) -> None:
    """Raise an error for a file that predictions cannot be written to, before they are made."""
    ending = Path(output).suffix if output is not None else ".csv"
    if ending not in (".csv", ".parquet"):
        raise ValueError(f"--output {output}: give a file that ends in .csv or .parquet.")
    if ending == ".parquet" and find_spec("pyarrow") is None:
        raise ImportError(
            f"--output {output} needs pyarrow: pip install pyarrow, or give a .csv file."
        )


class WritePredictions(Callback):
    """Write index, path (if there is one), label, prediction, confidence and probabilities.

    Monte Carlo prediction (``noise.monte_carlo``) adds its columns of uncertainty. With several
    processes the first one writes for all, each image once and in the order of the test set.

    Args:
        output: A ``.csv`` or ``.parquet`` file; null is ``predictions.csv`` in the run directory.
    """

    def __init__(self, output: str | None = None) -> None:
        check_output(output)
        self.output = output
        self.said = ""
        self._parts: list[dict[str, Tensor]] = []

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *unused: Any
    ) -> None:
        batch = as_sample(batch)
        columns = {"index": batch.index, "label": batch.target, "probabilities": outputs}
        for noise in NoiseInjection.of(trainer):
            columns |= {name: value.to(outputs.device) for name, value in noise.spread.items()}
        self._parts.append({name: gather(value) for name, value in columns.items()})

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero or not self._parts:
            return
        whole = {name: torch.cat([part[name] for part in self._parts]) for name in self._parts[0]}
        order = order_of_images(whole["index"])
        index, label, probabilities, *spread = (value[order] for value in whole.values())
        confidence, prediction = probabilities.max(-1)
        listings = getattr(getattr(trainer, "datamodule", None), "listings", None) or {}
        table: dict[str, list[Any]] = {"index": index.tolist()}
        if "test" in listings:
            table["path"] = [str(listings["test"].names[i]) for i in table["index"]]
        table |= {"label": label.tolist(), "prediction": prediction.tolist()}
        table |= {"confidence": confidence.tolist()}
        table |= {name: value.tolist() for name, value in zip([*whole][3:], spread, strict=True)}
        table |= {f"p{k}": column.tolist() for k, column in enumerate(probabilities.T)}
        path = Path(self.output) if self.output else RunDirectory.of(trainer).predictions
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _parquet(table) if path.suffix == ".parquet" else _csv(table))
        self.said = f"{len(order)} predictions in {path}"


def _csv(table: dict[str, list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return text.getvalue()


def _parquet(table: dict[str, list[Any]]) -> Any:
    import pyarrow.parquet  # type: ignore[import-untyped]

    def write(file: IO[bytes]) -> None:
        pyarrow.parquet.write_table(pyarrow.table(table), file)

    return write

"""What a report is made of: the networks of a study with their rows, and the errors of their tests.

The errors come from resampling the test images. A finished study is *packed* into two files:

``rows.jsonl.xz``
    One line per network in JSON: method, levels, seed, configuration, curves and test rows.
``images.npz``
    Per part, metric and network the standard deviation and the bias that resampling found, the
    correlations between all networks (times 32,767, lower triangle), the noise floors of ECE, and
    the bins of the reliability diagrams.

They give every table and interval again, also of contrasts that no report has shown yet. Weights,
logs and outputs of single images are not kept.
"""

import json
import lzma
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from math import fsum, log, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chaosgate.metrics.aggregate import CLEAN as CLEAN_CELL
from chaosgate.metrics.aggregate import Cell
from chaosgate.run.directory import DIGEST, RunDirectory, read_lines, replace_file
from chaosgate.run.outputs import Logits, Samples, ScaledSamples, load_logits, load_samples
from chaosgate.study.execute.state import record_of, rows_of, state_of
from chaosgate.study.plan.runs import Run, load_study
from chaosgate.study.plan.study import Study
from chaosgate.study.report import inference
from chaosgate.study.report.names import (
    FROM_LOGITS,
    FROM_OUTPUTS,
    MAIN,
    PLUS_T,
    columns_of,
    parts_of,
    scaled,
)
from chaosgate.study.report.planned import NOTE

if TYPE_CHECKING:
    import torch

ROWS, IMAGES = "rows.jsonl.xz", "images.npz"
_SCALE = 32767
Array = NDArray[Any]
ByCell = dict[Cell, float]
Column = tuple[str, str]  # part and metric


@dataclass(frozen=True)
class Network:
    """A trained network with its test rows, or an ensemble of several.

    Args:
        run: Its name; empty for an ensemble.
        variant: Method and levels: the row of the table.
        method: The method.
        levels: Level of every further axis.
        seed: The seed; negative for an ensemble, which is paired with nothing.
        members: How many networks answer together.
        checkpoint: Which network of the training was tested.
        config: The configuration of the training.
        curves: One entry per epoch.
        rows: One per test cell, with all metrics of the study.
    """

    run: str
    variant: str
    method: str
    levels: Mapping[str, str]
    seed: int
    members: int
    checkpoint: str
    config: dict[str, Any]
    curves: list[dict[str, float]]
    rows: list[dict[str, Any]]

    def by_cell(self, metric: str) -> ByCell:
        """A metric of every cell that has it; a row may have no ``nll_T``."""
        found = {_cell(row): row.get(metric) for row in self.rows}
        return {cell: float(value) for cell, value in found.items() if value is not None}

    @property
    def energy(self) -> float:
        """Injected energy relative to that of the features at the end of training, over all sites.

        0 without a gate; nan for a gate that was not measured.
        """
        first = self.rows[0]
        if first["noise"]["gate"] is not None and not first["noise_measured"]:
            return nan
        return fsum(float(site["energy"]) for site in first["noise_measured"])

    @property
    def temperature(self) -> float | None:
        """What the logits were divided by for the columns +T; None where none was fitted."""
        return next(iter(self.by_cell("temperature").values()), None)

    @property
    def fitted_on_test(self) -> bool:
        """Whether that temperature was fitted on the test images."""
        return any(row.get("temperature_split") == "test" for row in self.rows)

    @property
    def validation_nll(self) -> float:
        """Of the tested checkpoint: the last, the smallest, or that of the first largest Top-1."""
        lines = [line for line in self.curves if "val/nll" in line]
        if not lines:
            return nan
        if self.checkpoint == "top1":
            return max(lines, key=lambda line: line.get("val/top1", nan))["val/nll"]
        last = lines[-1]["val/nll"]
        return last if self.checkpoint == "last" else min(line["val/nll"] for line in lines)

    @property
    def bins(self) -> int:
        """Bins of the ECE; rows of before have the default."""
        return int(self.config["model"].get("num_bins", inference.NUM_BINS))


@dataclass(frozen=True)
class ImageErrors:
    """What resampling the test images gave; ``nan`` where a network has no kept outputs.

    Args:
        networks: Variant and seed of every network. ``VARIANT+T`` of the reference stands for its
            metrics after temperature scaling, to compare others without a temperature with it.
        columns: Part and metric.
        bias: Mean over resamplings minus the measured value, (columns, networks).
        covariance: Between networks over resamplings, (columns, networks, networks).
        floors: ECE of a perfectly calibrated network with these confidences: mean and 95th
            percentile, (columns, networks, 2).
        reliability: Count, summed confidence, summed correctness and worth in independent images
            of every bin, clean and corrupted, (2, networks, 4, bins).
    """

    networks: list[tuple[str, int]]
    columns: list[Column]
    bias: Array
    covariance: Array
    floors: Array
    reliability: Array

    def of_differences(
        self, column: Column, mine: str, theirs: str, seeds: Sequence[int]
    ) -> tuple[Array | None, float]:
        """Covariance of paired differences over seeds, and their mean bias; None if unknown."""
        if column not in self.columns:
            return None, 0.0
        a, b = ([self.networks.index((one, seed)) for seed in seeds] for one in (mine, theirs))
        k = self.columns.index(column)
        whole, bias = self.covariance[k], float((self.bias[k, a] - self.bias[k, b]).mean())
        covariance = whole[np.ix_(a, a)] + whole[np.ix_(b, b)]
        covariance -= whole[np.ix_(a, b)] + whole[np.ix_(b, a)]
        return (covariance, bias) if np.isfinite(covariance).all() else (None, 0.0)

    def of_row(self, values: Array, variant: str) -> Array:
        """Those of the networks of a row that have some."""
        rows = [k for k, (one, _) in enumerate(self.networks) if one == variant]
        return np.array([values[k] for k in rows if np.isfinite(values[k]).all()])


@dataclass(frozen=True)
class Evidence:
    """The finished networks of a study and the errors of their tests."""

    networks: list[Network]
    images: ImageErrors


class _Tested(NamedTuple):
    """A network and its outputs for every image."""

    network: Network
    samples: Samples | None


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(row["corruption"], int(row["severity"]))


# -- from the runs of a study ----------------------------------------------------------------------


def collect(study: Study, runs: Sequence[Run]) -> Evidence:
    """The finished ones among the runs, in order, then their ensembles."""
    finished = [run for run in runs if state_of(run).condition == "done"]
    tested = [_read(study, run) for run in finished]
    indices = [one.samples.index for one in tested if one.samples is not None]
    for index in indices:
        if not np.array_equal(index, indices[0]):
            raise ValueError(
                f"two runs of this study were tested on different images ({len(indices[0])} and "
                f"{len(index)} of them, or with other indices), so they cannot be paired. Remove "
                "their `outputs` and `tested` folders and run the study again."
            )
    tested += _ensembles(study, {run.name: run for run in finished}, tested)
    return Evidence([one.network for one in tested], _image_errors(study, tested))


def _read(study: Study, run: Run) -> _Tested:
    directory = RunDirectory(run.directory)
    records = [record_of(run.directory, test) for test in run.test_outputs]
    rows = [dict(row) for row in rows_of(run.directory, records) if not row.get("ood")]
    lines, _ = read_lines(directory.curves)  # if an epoch was started twice, the last one counts
    curves = list({line["epoch"]: line for line in lines}.values())
    about = (run.name, run.variant, run.method, run.levels, run.seed, 1, run.checkpoint)
    samples = load_samples(run.directory, *run.outputs_of(ood=False))
    names = run.outputs_of(ood=True)
    others = load_samples(run.directory, names[0]) if names else None
    outside = None if others is None else others.confidence[0]
    found: dict[str, ByCell] = {}  # metrics that no row has: made from kept outputs and logits
    if samples is not None and any(metric in FROM_OUTPUTS for metric in study.metrics):
        found |= confidence_metrics(samples, outside)
    if any(metric in FROM_LOGITS for metric in study.metrics):
        kept = load_logits(run.directory, run.outputs_of(ood=False))
        found |= {} if kept is None else class_metrics(kept.cells, kept.logits, kept.target)
    for row in rows:
        row |= {
            metric: values[_cell(row)] for metric, values in found.items() if _cell(row) in values
        }
    return _Tested(Network(*about, directory.settings(), curves, rows), samples)


def _image_errors(study: Study, tested: Sequence[_Tested]) -> ImageErrors:
    own = [(one.network.variant, one.network.seed) for one in tested]
    of_reference = [one.network.method == study.reference for one in tested]
    networks = own + [(f"{v}+T", s) for (v, s), yes in zip(own, of_reference, strict=True) if yes]
    groups = parts_of(next((one.samples.cells for one in tested if one.samples is not None), ()))
    metrics = list(dict.fromkeys([*columns_of(study.metrics), *PLUS_T, *map(scaled, PLUS_T)]))
    columns = [(part, metric) for part in groups for metric in metrics]
    bins = max((one.network.bins for one in tested), default=0)
    drawn = np.full((len(columns), len(networks), 1 + inference.RESAMPLES), nan)
    floors = np.full((len(columns), len(networks), 2), nan)
    reliability = np.full((len(MAIN), len(networks), 4, bins), nan)
    for k, (network, samples) in enumerate(tested):
        if samples is None:
            continue
        after = None if samples.scaled is None else samples.scaled.confidence
        for part in (part for part in MAIN if part in groups):
            for metric, scores in (("ece", samples.confidence), ("ece_T", after)):
                if scores is not None:
                    floor = inference.ece_floor(scores, samples.cells, groups[part], network.bins)
                    floors[columns.index((part, metric)), k] = floor
            cells = [cell for group in groups[part] for cell in group]
            pooled = _pooled(samples.of(cells), network.bins)
            reliability[MAIN.index(part), k, :, : network.bins] = pooled
        if network.members > 1:
            continue
        found = inference.resample(samples, groups, metrics, network.bins)
        for (part, metric), values in found.items():
            drawn[columns.index((part, metric)), k] = values
            plain = metric.removesuffix("_T")
            if of_reference[k] and plain != metric:
                other = networks.index((f"{network.variant}+T", network.seed))
                drawn[columns.index((part, plain)), other] = values
    known = [k for k, column in enumerate(drawn) if np.isfinite(column).any()]
    stars = drawn[known]
    return ImageErrors(
        networks,
        [columns[k] for k in known],
        stars[..., 1:].mean(-1) - stars[..., 0],
        np.array([np.cov(column[:, 1:]) for column in stars]),
        floors[known],
        reliability,
    )


def _pooled(samples: Samples, bins: int) -> Array:
    """All cells pooled; an image in several cells is worth less than as many images."""
    import torch

    from chaosgate.metrics.functional import calibration_bins, effective_counts

    confidence, correct = map(torch.from_numpy, (samples.confidence, samples.correct))
    sums = calibration_bins(confidence.ravel().double(), correct.ravel(), bins)
    return np.stack([*sums[:3], effective_counts(confidence, correct, bins)])


def confidence_metrics(samples: Samples, outside: Array | None) -> dict[str, ByCell]:
    """AURC of every cell, and AUROC of clean images against others.

    Args:
        samples: Outputs of the network for every image.
        outside: Confidences of images that belong to none of its classes, if there are any.
    """
    import torch

    from chaosgate.metrics import area_under_risk_coverage, area_under_roc

    confidence, correct = torch.from_numpy(samples.confidence), torch.from_numpy(samples.correct)
    pairs = zip(samples.cells, confidence, correct, strict=True)
    found = {"aurc": {cell: float(area_under_risk_coverage(c, right)) for cell, c, right in pairs}}
    if outside is not None and CLEAN_CELL in samples.cells:
        inside = confidence[samples.cells.index(CLEAN_CELL)]
        found["ood_auroc"] = {CLEAN_CELL: float(area_under_roc(inside, torch.from_numpy(outside)))}
    return found


def class_metrics(cells: Sequence[Cell], logits: Any, target: Array) -> dict[str, ByCell]:
    """Classwise ECE and two terms of the Brier score, which need the probabilities of all classes.

    Args:
        cells: The cells.
        logits: Logits (images, classes) of each of them.
        target: True classes, (cells, images).
    """
    import torch

    from chaosgate.metrics import BrierScore, classwise_calibration_error

    found: dict[str, ByCell] = {name: {} for name in FROM_LOGITS}
    for cell, own, truth in zip(cells, logits, torch.as_tensor(target).long(), strict=True):
        probs = torch.as_tensor(own).double().softmax(-1)
        brier = BrierScore(probs.shape[1])
        brier.update(probs, truth)
        terms = brier.decomposition()
        values = (classwise_calibration_error(probs, truth), terms.reliability, terms.resolution)
        for name, value in zip(FROM_LOGITS, values, strict=True):
            found[name][cell] = float(value)
    return found


# -- deep ensembles of existing runs ---------------------------------------------------------------


def _ensembles(study: Study, runs: Mapping[str, Run], tested: Sequence[_Tested]) -> list[_Tested]:
    """As many ensembles as the finished seeds of their methods allow, in the order of seeds."""
    made = []
    for of, size in ((one.of, one.size) for one in study.ensemble):
        networks = {one.network.seed: one.network for one in tested if one.network.method == of}
        ready = [networks[seed] for seed in study.seeds if seed in networks]
        for k in range(0, len(ready) - size + 1, size):
            group, first = [runs[network.run] for network in ready[k : k + size]], ready[k]
            kept = [load_logits(run.directory, run.outputs_of(ood=False)) for run in group]
            members = [one for one in kept if one is not None]
            if len(members) < size:
                continue
            by_cell, temperature, samples = _together(members, first.bins)
            rows = []
            for row in (row for row in first.rows if _cell(row) in samples.cells):
                values = {name: cells.get(_cell(row)) for name, cells in by_cell.items()}
                rows.append({**row, "temperature": temperature, **values})
            together = Network(
                run="",
                variant=f"{of} ensemble x{size}",
                method=of,
                levels={},
                seed=-1 - k // size,
                members=size,
                checkpoint=first.checkpoint,
                config=first.config,
                curves=[],
                rows=rows,
            )
            made.append(_Tested(together, samples))
    return made


def _together(
    members: Sequence[Logits], bins: int
) -> tuple[dict[str, ByCell], float | None, Samples]:
    """The mean of the members' probabilities as one network, with a temperature of its own."""
    import torch

    from chaosgate.metrics import CellMetrics, classification_scores, temperature_scaling

    first = members[0]
    logits = _mean_log_probability([member.logits for member in members])
    target = torch.from_numpy(first.target).long()
    cells, images, classes = logits.shape
    flat, targets = logits.view(-1, classes), target.reshape(-1)

    def columns(values: "torch.Tensor") -> dict[str, "torch.Tensor"]:
        metrics = CellMetrics(cells, bins, adaptive_bins=bins)
        metrics.update(values, targets, torch.arange(cells).repeat_interleave(images))
        return metrics.compute()

    found, temperature, after = dict(columns(flat)), None, None
    held = [member.validation for member in members if member.validation is not None]
    if len(held) == len(members) and all(np.array_equal(one[2], held[0][2]) for one in held):
        mean, truth = _mean_log_probability([one[0] for one in held]), held[0][1]
        with suppress(ValueError):  # no temperature is best
            temperature = temperature_scaling(mean, torch.from_numpy(truth).long()).temperature
    if temperature is not None:
        of_scaled = columns(flat / temperature)
        found |= {scaled(name): of_scaled[name] for name in PLUS_T}
        confidence = (logits / temperature).softmax(-1).amax(-1).float().numpy()
        none = np.empty(0, np.float32)  # an ensemble is paired with nothing: no slopes
        after = ScaledSamples(confidence[None], none, none)
    scores = classification_scores(flat, targets)
    one_each = (scores.confidence.float(), scores.rank < 1, scores.nll.float())
    confidence, correct, nll = (one.view(cells, images).numpy() for one in one_each)
    samples = Samples(first.cells, confidence, correct, nll, first.index, after)
    by_cell = confidence_metrics(samples, None) | class_metrics(first.cells, logits, first.target)
    for name, column in found.items():
        by_cell[name] = dict(zip(first.cells, column.reshape(-1).tolist(), strict=True))
    return by_cell, temperature, samples


def _mean_log_probability(logits: Iterable[Array]) -> "torch.Tensor":
    """The logarithm of the mean probability over members, in float64."""
    import torch

    each = torch.stack([torch.from_numpy(one).double().log_softmax(-1) for one in logits])
    return each.logsumexp(0) - log(len(each))


# -- packed studies --------------------------------------------------------------------------------


def is_packed(path: Path) -> bool:
    """Whether a path is the folder of a packed study."""
    return (path / ROWS).is_file()


def pack(study: Study, runs: Sequence[Run], folder: Path) -> Path:
    """Pack a finished study into a folder below ``folder``; return it."""
    evidence = collect(study, runs)
    if missing := len(runs) - sum(network.members == 1 for network in evidence.networks):
        raise ValueError(
            f"{missing} of {len(runs)} runs of {study.name} are not finished; only a finished "
            f"study is packed. Finish it first: chaosgate study run {study.path}"
        )
    own = folder / study.name
    own.mkdir(parents=True, exist_ok=True)
    places = {str(run.directory): run.training for run in runs}
    places |= {value: f"${{{name}}}" for name, value in runs[0].folders.items()}
    write_packed(evidence, own, {k: v for k, v in places.items() if Path(k).is_absolute()})
    replace_file(own / f"{study.path.stem}.yaml", study.path.read_text(encoding="utf-8"))
    if (plan := runs[0].root.parent / study.name / NOTE).is_file():
        replace_file(own / NOTE, plan.read_text(encoding="utf-8"))
    return own


def write_packed(evidence: Evidence, folder: Path, places: Mapping[str, str]) -> None:
    """Write the two files; folders of this machine become the names in ``places``."""
    text = ""
    for network in evidence.networks:
        rows = [{k: v for k, v in row.items() if k != DIGEST} for row in network.rows]
        text += json.dumps({**asdict(network), "rows": rows}) + "\n"
    for place, name in places.items():
        text = text.replace(json.dumps(place)[1:-1], name)
    replace_file(folder / ROWS, lzma.compress(text.encode(), preset=9))
    images = evidence.images
    deviation = np.sqrt(np.diagonal(images.covariance, axis1=1, axis2=2))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = images.covariance / (deviation[:, :, None] * deviation[:, None])
    lower = np.nan_to_num(correlation[:, *np.tril_indices(len(images.networks), -1)])
    arrays = {
        "networks": np.array(images.networks, dtype=str),
        "columns": np.array(images.columns, dtype=str),
        "bias": images.bias.astype(np.float32),
        "deviation": deviation.astype(np.float32),
        "correlation": np.rint(lower * _SCALE).astype(np.int16),
        "floors": images.floors,
        "reliability": images.reliability.astype(np.float32),
    }
    replace_file(folder / IMAGES, partial(np.savez_compressed, **arrays))


def load_packed(folder: Path) -> tuple[Study, Evidence]:
    """A packed study."""
    try:
        text = lzma.decompress((folder / ROWS).read_bytes()).decode()
        networks = [Network(**json.loads(line)) for line in text.splitlines()]
        with np.load(folder / IMAGES, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (lzma.LZMAError, zipfile.BadZipFile, zlib.error, ValueError, TypeError) as error:
        raise ValueError(f"{folder} is damaged ({error}); restore it, or pack it again.") from error
    deviation = arrays["deviation"].astype(np.float64)
    rows, columns = np.tril_indices(deviation.shape[1], -1)
    correlation = np.tile(np.eye(deviation.shape[1]), (len(deviation), 1, 1))
    correlation[:, rows, columns] = arrays["correlation"] / _SCALE
    correlation[:, columns, rows] = arrays["correlation"] / _SCALE
    images = ImageErrors(
        [(str(variant), int(seed)) for variant, seed in arrays["networks"]],
        [(str(part), str(metric)) for part, metric in arrays["columns"]],
        arrays["bias"].astype(np.float64),
        correlation * deviation[:, :, None] * deviation[:, None],
        arrays["floors"],
        arrays["reliability"].astype(np.float64),
    )
    (file,) = folder.glob("*.yaml")
    return load_study(file, networks[0].rows[0].get("size")), Evidence(networks, images)

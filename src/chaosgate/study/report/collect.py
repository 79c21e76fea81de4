"""What a report is made of: the networks of a study with their rows, and the errors of their tests.

The errors come from resampling the test images. A finished study is *packed* into two files:

``rows.jsonl.xz``
    One line per network in JSON: method, levels, seed, configuration, curves and test rows.
``images.npz``
    Per part, metric and network the standard deviation and the bias that resampling found, the
    correlations between all networks (times 32,767, lower triangle), and the noise floors of ECE.

They give every table and interval again, also of contrasts that nobody has asked for yet. Weights,
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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chaosgate.metrics.aggregate import CLEAN as CLEAN_CELL
from chaosgate.metrics.aggregate import Cell
from chaosgate.run.directory import DIGEST, RunDirectory, read_lines, replace_file
from chaosgate.run.outputs import Logits, Samples, load_logits, load_samples
from chaosgate.study.execute.state import record_of, rows_of, state_of
from chaosgate.study.plan.runs import Run, load_study
from chaosgate.study.plan.study import Ensemble, Study
from chaosgate.study.report import inference
from chaosgate.study.report.names import FROM_LOGITS, FROM_OUTPUTS, PLUS_T, scaled
from chaosgate.study.report.planned import NOTE

if TYPE_CHECKING:
    import torch

CLEAN, CORRUPTED = MAIN = ("clean", "corrupted")
PRIMARY = "nll_T"
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
        return {
            Cell(row["corruption"], int(row["severity"])): float(row[metric])
            for row in self.rows
            if row.get(metric) is not None
        }

    @property
    def energy(self) -> float:
        """Injected energy relative to that of the features at the end of training, over all sites.

        0 without a gate; nan for a gate that was not measured.
        """
        if self.rows[0]["noise"]["gate"] is not None and not self.rows[0]["noise_measured"]:
            return nan
        return fsum(float(site["energy"]) for site in self.rows[0]["noise_measured"])

    @property
    def temperature(self) -> float | None:
        """What the logits were divided by for the columns +T; None where none was fitted."""
        found = [row["temperature"] for row in self.rows if row.get("temperature") is not None]
        return float(found[0]) if found else None

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
    """What resampling the test images gave; ``nan`` for a network without kept outputs.

    Args:
        networks: Variant and seed of every network. ``VARIANT+T`` of the reference stands for its
            metrics after temperature scaling, to compare others without a temperature with it.
        bias: Mean over resamplings minus the measured value, by column, (networks,).
        covariance: Between networks over resamplings, by column, (networks, networks).
        floors: ECE of a perfectly calibrated network with these confidences: mean and 95th
            percentile, by column, (networks, 2).
        reliability: Per variant and part, of the first seed: count, summed confidence, summed
            correctness and worth in independent images of every bin, (4, bins).
    """

    networks: list[tuple[str, int]]
    bias: Mapping[Column, Array]
    covariance: Mapping[Column, Array]
    floors: Mapping[Column, Array]
    reliability: Mapping[tuple[str, str], Array]

    def of_differences(
        self, column: Column, mine: str, theirs: str, seeds: Sequence[int]
    ) -> tuple[Array | None, float]:
        """Covariance of paired differences over seeds, and their mean bias; None if unknown."""
        if column not in self.covariance:
            return None, 0.0
        a, b = ([self.networks.index((one, seed)) for seed in seeds] for one in (mine, theirs))
        whole, bias = self.covariance[column], self.bias[column]
        blocks = [whole[np.ix_(i, j)] for i, j in ((a, a), (b, b), (a, b), (b, a))]
        covariance = blocks[0] + blocks[1] - blocks[2] - blocks[3]
        known = bool(np.isfinite(covariance).all())
        return (covariance, float((bias[a] - bias[b]).mean())) if known else (None, 0.0)


@dataclass(frozen=True)
class Evidence:
    """The finished networks of a study and the errors of their tests."""

    networks: list[Network]
    images: ImageErrors


def parts_of(cells: Iterable[Cell]) -> inference.Groups:
    """Parts of a test with their cells by corruption."""
    by_name: dict[str, list[Cell]] = {}
    for cell in cells:
        by_name.setdefault(cell[0], []).append(cell)
    clean = by_name.pop(CLEAN, None)
    groups: dict[str, list[list[Cell]]] = {CLEAN: [clean]} if clean else {}
    if by_name:
        groups[CORRUPTED] = list(by_name.values())
        groups |= {name: [own] for name, own in by_name.items()}
        every = [cell for own in by_name.values() for cell in own]
        for level in sorted({level for _, level in every}):
            groups[f"severity {level}"] = [[cell] for cell in every if cell[1] == level]
    return groups


def columns_of(study: Study) -> list[str]:
    """Metrics of the tables in order: Top-1, the primary one, then those of the study."""
    own = [[one, *([scaled(one)] if one in PLUS_T else [])] for one in study.metrics]
    return list(dict.fromkeys(["top1", PRIMARY, *sum(own, [])]))


# -- from the runs of a study ----------------------------------------------------------------------


class _Errors:
    """Collects what :class:`ImageErrors` has, network by network."""

    def __init__(self, study: Study) -> None:
        self.metrics, self.reference = columns_of(study), study.reference
        self.networks: list[tuple[str, int]] = []
        self.drawn: dict[Column, dict[int, inference.Floats]] = {}
        self.floors: dict[Column, dict[int, tuple[float, float]]] = {}
        self.reliability: dict[tuple[str, str], Array] = {}

    def add(
        self,
        network: Network,
        samples: Samples | None,
        scaled_confidence: Array | None,
        outside: Array | None = None,
    ) -> None:
        number = len(self.networks)
        self.networks.append((network.variant, network.seed))
        if samples is None:
            return
        groups = parts_of(samples.cells)
        if network.members == 1:
            drawn = inference.resample(samples, groups, self.metrics, network.bins)
            if "ood_auroc" in self.metrics and outside is not None:
                inside = samples.confidence[samples.cells.index(CLEAN_CELL)]
                drawn[CLEAN, "ood_auroc"] = inference.resample_auroc(inside, outside)
            for column, values in drawn.items():
                self.drawn.setdefault(column, {})[number] = values
            if network.method == self.reference:
                self.networks.append((f"{network.variant}+T", network.seed))
                for part, metric in ((part, metric) for part in MAIN for metric in PLUS_T):
                    if (part, scaled(metric)) in drawn:
                        after = drawn[part, scaled(metric)]
                        self.drawn[part, metric][number + 1] = after
        for metric, scores in (("ece", samples.confidence), ("ece_T", scaled_confidence)):
            for part in (part for part in MAIN if part in groups and scores is not None):
                floor = inference.ece_floor(scores, samples.cells, groups[part], network.bins)
                self.floors.setdefault((part, metric), {})[number] = floor
        for part in (part for part in MAIN if part in groups and network.members == 1):
            if (network.variant, part) not in self.reliability:
                cells = [cell for group in groups[part] for cell in group]
                bins = _reliability(samples.of(cells), network.bins)
                self.reliability[network.variant, part] = bins

    def errors(self) -> ImageErrors:
        many = len(self.networks)
        bias, covariance, floors = {}, {}, {}
        for column, drawn in self.drawn.items():
            there, draws = list(drawn), np.stack(list(drawn.values()))
            bias[column] = np.full(many, nan)
            bias[column][there] = draws[:, 1:].mean(1) - draws[:, 0]
            covariance[column] = np.full((many, many), nan)
            covariance[column][np.ix_(there, there)] = np.atleast_2d(np.cov(draws[:, 1:]))
        for column, pairs in self.floors.items():
            floors[column] = np.full((many, 2), nan)
            floors[column][list(pairs)] = list(pairs.values())
        return ImageErrors(self.networks, bias, covariance, floors, self.reliability)


def _reliability(samples: Samples, bins: int) -> Array:
    """All cells pooled; an image in several cells is worth less than as many images."""
    import torch

    from chaosgate.metrics.functional import calibration_bins, effective_counts

    confidence, correct = map(torch.from_numpy, (samples.confidence, samples.correct))
    sums = calibration_bins(confidence.ravel().double(), correct.ravel(), bins)
    return np.stack([*sums[:3], effective_counts(confidence, correct, bins)])


def collect(study: Study, runs: Sequence[Run]) -> Evidence:
    """The finished ones among the runs, in order, then their ensembles."""
    found: list[tuple[Run, Network]] = []
    errors, index = _Errors(study), None
    for run in runs:
        if state_of(run).condition != "done":
            continue
        records = [record_of(run.directory, test) for test in run.test_outputs]
        rows = [dict(row) for row in rows_of(run.directory, records) if not row.get("ood")]
        directory = RunDirectory(run.directory)
        lines, _ = read_lines(directory.curves)  # of an epoch that was begun twice, the last counts
        curves = list({line["epoch"]: line for line in lines}.values())
        network = Network(
            run.name,
            run.variant,
            run.method,
            run.levels,
            run.seed,
            1,
            run.checkpoint,
            directory.settings(),
            curves,
            rows,
        )
        samples = load_samples(run.directory, *run.outputs_of(ood=False))
        if samples is not None:
            index = samples.index if index is None else index
            if not np.array_equal(samples.index, index):
                raise ValueError(
                    f"two runs of this study were tested on different images ({len(index)} and "
                    f"{len(samples.index)} of them, or with other indices), so they cannot be "
                    "paired. Remove their `outputs` and `tested` folders and run the study again."
                )
        outside = _outside(run)
        _add_derived(network, study, run, samples, outside)
        scaled_samples = None if samples is None else samples.scaled
        after = None if scaled_samples is None else scaled_samples.confidence
        errors.add(network, samples, after, outside)
        found.append((run, network))
    networks = [network for _, network in found]
    for ensemble in study.ensemble:
        for together, *outputs in _ensembles(study, ensemble, found):
            errors.add(together, *outputs)
            networks.append(together)
    return Evidence(networks, errors.errors())


def _outside(run: Run) -> NDArray[np.float32] | None:
    """Confidence in images that belong to none of the classes; None without such a test."""
    names = run.outputs_of(ood=True)
    samples = load_samples(run.directory, names[0]) if names else None
    return None if samples is None else samples.confidence[0]


def _add_derived(
    network: Network, study: Study, run: Run, samples: Samples | None, outside: Array | None
) -> None:
    """Add the metrics that no test row has: they are made from kept outputs and logits."""
    found: dict[str, ByCell] = {}
    if samples is not None and any(metric in FROM_OUTPUTS for metric in study.metrics):
        found |= confidence_metrics(samples, outside)
    if any(metric in FROM_LOGITS for metric in study.metrics):
        kept = load_logits(run.directory, run.outputs_of(ood=False))
        if kept is not None:
            import torch

            logits = (torch.from_numpy(one) for one in kept.logits)
            found |= class_metrics(kept.cells, logits, torch.from_numpy(kept.target).long())
    for row in network.rows:
        cell = (row["corruption"], int(row["severity"]))
        row |= {metric: by_cell[cell] for metric, by_cell in found.items() if cell in by_cell}


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


def class_metrics(
    cells: Sequence[Cell], logits: "Iterable[torch.Tensor]", target: "torch.Tensor"
) -> dict[str, ByCell]:
    """Classwise ECE and two terms of the Brier score, which need the probabilities of all classes.

    Args:
        cells: The cells.
        logits: Logits (images, classes) of each of them.
        target: True classes, (cells, images).
    """
    from chaosgate.metrics import BrierScore, classwise_calibration_error

    found: dict[str, ByCell] = {name: {} for name in FROM_LOGITS}
    for cell, own, truth in zip(cells, logits, target, strict=True):
        probs = own.double().softmax(-1)
        brier = BrierScore(probs.shape[1])
        brier.update(probs, truth)
        terms = brier.decomposition()
        found["classwise_ece"][cell] = float(classwise_calibration_error(probs, truth))
        found["brier_reliability"][cell] = float(terms.reliability)
        found["brier_resolution"][cell] = float(terms.resolution)
    return found


# -- deep ensembles of existing runs ---------------------------------------------------------------


def ensemble_name(ensemble: Ensemble) -> str:
    """The name of its row: the method and how many runs it costs."""
    return f"{ensemble.of} ensemble x{ensemble.size}"


def _ensembles(
    study: Study, ensemble: Ensemble, found: Sequence[tuple[Run, Network]]
) -> list[tuple[Network, Samples, Array | None]]:
    """As many ensembles as the finished seeds of the method allow, in the order of seeds."""
    by_seed = {run.seed: (run, network) for run, network in found if run.method == ensemble.of}
    ready, size = [by_seed[seed] for seed in study.seeds if seed in by_seed], ensemble.size
    made: list[tuple[Network, Samples, Array | None]] = []
    for k in range(0, len(ready) - size + 1, size):
        group = ready[k : k + size]
        kept = [load_logits(run.directory, run.outputs_of(ood=False)) for run, _ in group]
        members = [one for one in kept if one is not None]
        if len(members) < size:
            continue
        outside = [load_logits(run.directory, run.outputs_of(ood=True)) for run, _ in group]
        ood = [one.logits[0] for one in outside if one is not None]
        first = group[0][1]
        mean_ood = _mean_log_probability(ood) if len(ood) == size else None
        by_cell, temperature, *outputs = _together(members, mean_ood, first.bins)
        rows = [
            {
                **row,
                "temperature": temperature,
                **{name: one.get(cell) for name, one in by_cell.items()},
            }
            for row in first.rows
            if (cell := (row["corruption"], int(row["severity"]))) in by_cell["nll"]
        ]
        about = (ensemble_name(ensemble), ensemble.of, {}, -1 - len(made), size, first.checkpoint)
        made.append((Network("", *about, first.config, [], rows), *outputs))
    return made


def _together(
    members: Sequence[Logits], ood: "torch.Tensor | None", bins: int
) -> tuple[dict[str, ByCell], float | None, Samples, Array | None]:
    """The mean of the members' probabilities as one network, with a temperature of its own.

    Its metrics, the temperature, the outputs, and the confidence after temperature scaling.
    """
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
    validations = [member.validation for member in members if member.validation is not None]
    same = all(np.array_equal(one[2], validations[0][2]) for one in validations)
    if same and len(validations) == len(members):
        mean, on = _mean_log_probability([one[0] for one in validations]), validations[0][1]
        with suppress(ValueError):  # no temperature is best
            temperature = temperature_scaling(mean, torch.from_numpy(on).long()).temperature
    if temperature is not None:
        columns_after = columns(flat / temperature)
        found |= {scaled(name): columns_after[name] for name in PLUS_T}
        after = (logits / temperature).softmax(-1).amax(-1).float().numpy()
    scores = classification_scores(flat, targets)
    one_each = (scores.confidence.float(), scores.rank < 1, scores.nll.float())
    confidence, correct, nll = (one.view(cells, images).numpy() for one in one_each)
    samples = Samples(first.cells, confidence, correct, nll, first.index)
    outside = None if ood is None else ood.amax(-1).exp().float().numpy()
    by_cell = confidence_metrics(samples, outside) | class_metrics(first.cells, logits, target)
    for name, column in found.items():
        by_cell[name] = dict(zip(first.cells, column.reshape(-1).tolist(), strict=True))
    return by_cell, temperature, samples, after


def _mean_log_probability(logits: Sequence[NDArray[np.float16]]) -> "torch.Tensor":
    """The logarithm of the mean probability over members, in float64."""
    import torch

    each = torch.stack([torch.from_numpy(one).double().log_softmax(-1) for one in logits])
    return each.logsumexp(0) - log(len(logits))


# -- packed studies --------------------------------------------------------------------------------


def is_packed(path: Path) -> bool:
    """Whether a path is the folder of a packed study."""
    return (path / ROWS).is_file()


def pack(study: Study, runs: Sequence[Run], folder: Path) -> Path:
    """Pack a finished study into a folder below ``folder``; return it."""
    evidence = collect(study, runs)
    missing = len(runs) - sum(network.members == 1 for network in evidence.networks)
    if missing:
        raise ValueError(
            f"{missing} of {len(runs)} runs of {study.name} are not finished; only a finished "
            f"study is packed. Finish it first: chaosgate study run {study.path}"
        )
    own = folder / study.name
    own.mkdir(parents=True, exist_ok=True)
    places = {value: f"${{{name}}}" for name, value in runs[0].folders.items()}
    places |= {str(run.directory): run.training for run in runs}
    write_packed(evidence, own, places)
    replace_file(own / f"{study.path.stem}.yaml", study.path.read_text(encoding="utf-8"))
    if (plan := runs[0].root.parent / study.name / NOTE).is_file():
        replace_file(own / NOTE, plan.read_text(encoding="utf-8"))
    return own


def write_packed(evidence: Evidence, folder: Path, places: Mapping[str, str] = {}) -> None:
    """Write the two files; folders of this machine become the names in ``places``."""
    lines = []
    for network in evidence.networks:
        rows = [{k: v for k, v in row.items() if k != DIGEST} for row in network.rows]
        line = json.dumps({**asdict(network), "rows": rows})
        for place, name in places.items():
            line = (
                line.replace(json.dumps(place)[1:-1], name) if Path(place).is_absolute() else line
            )
        lines.append(f"{line}\n")
    replace_file(folder / ROWS, lzma.compress("".join(lines).encode(), preset=9))
    images = evidence.images
    columns = list(images.covariance)
    many = len(images.networks)
    whole = np.array([images.covariance[one] for one in columns]).reshape(-1, many, many)
    deviation = np.sqrt(np.diagonal(whole, axis1=1, axis2=2))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = whole / (deviation[:, :, None] * deviation[:, None])
    lower = np.nan_to_num(correlation[:, *np.tril_indices(many, -1)])
    arrays = {
        "networks": np.array(images.networks, dtype=str),
        "columns": np.array(columns, dtype=str).reshape(-1, 2),
        "deviation": deviation.astype(np.float32),
        "correlation": np.rint(lower * _SCALE).astype(np.int16),
        "bias": np.array([images.bias[one] for one in columns], np.float32).reshape(-1, many),
        "floor_columns": np.array(list(images.floors), dtype=str).reshape(-1, 2),
        "floors": np.array(list(images.floors.values())).reshape(-1, many, 2),
        "reliability_columns": np.array(list(images.reliability), dtype=str).reshape(-1, 2),
        "reliability": np.array(list(images.reliability.values())),
    }
    replace_file(folder / IMAGES, partial(np.savez_compressed, **arrays))


def load_packed(path: Path) -> tuple[Study, Evidence]:
    """A packed study."""
    try:
        text = lzma.decompress((path / ROWS).read_bytes()).decode()
        networks = [Network(**json.loads(line)) for line in text.splitlines()]
        with np.load(path / IMAGES, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (lzma.LZMAError, zipfile.BadZipFile, zlib.error, ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); restore it, or pack it again.") from error
    (file,) = path.glob("*.yaml")
    study = load_study(file, networks[0].rows[0].get("size"))
    many = len(arrays["networks"])
    covariance = {}
    for column, deviation, lower in zip(
        _keys(arrays["columns"]),
        arrays["deviation"].astype(np.float64),
        arrays["correlation"],
        strict=True,
    ):
        whole = np.eye(many)
        whole[np.tril_indices(many, -1)] = lower / _SCALE
        whole += np.tril(whole, -1).T
        covariance[column] = whole * np.outer(deviation, deviation)
    images = ImageErrors(
        [(str(variant), int(seed)) for variant, seed in arrays["networks"]],
        dict(zip(covariance, arrays["bias"].astype(np.float64), strict=True)),
        covariance,
        dict(zip(_keys(arrays["floor_columns"]), arrays["floors"], strict=True)),
        dict(zip(_keys(arrays["reliability_columns"]), arrays["reliability"], strict=True)),
    )
    return study, Evidence(networks, images)


def _keys(names: Array) -> list[tuple[str, str]]:
    return [(str(first), str(second)) for first, second in names]

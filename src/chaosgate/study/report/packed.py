"""A study in two files, without its networks.

``rows.jsonl.xz``
    One line per network in JSON: method, levels, seed, configuration, curves and test rows.
``images.npz``
    Per part, metric and network the standard deviation and the bias that resampling found, the
    correlations between all networks (times 32,767, lower triangle), the noise floors of ECE, and
    the bins of the reliability diagrams.

They give every table and interval again, also of contrasts that no report has shown yet. Weights,
logs and outputs of single images are not kept. Of a part of a study ``images.npz`` has the draws
instead of the correlations: ``study run NAME --packed FOLDER`` trains what the part lacks.
"""

import json
import lzma
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from chaosgate.run.files import DIGEST, replace_file
from chaosgate.run.outputs import write_arrays
from chaosgate.study.plan.runs import Run, folders_of, load_study
from chaosgate.study.plan.study import Study
from chaosgate.study.report.collect import Array, Evidence, ImageErrors, Network, collect
from chaosgate.study.report.inference import RESAMPLES
from chaosgate.study.report.names import MAIN, ROWS
from chaosgate.study.report.planned import NOTE

IMAGES = "images.npz"
_SCALE = 32767


def pack(study: Study, runs: Sequence[Run], folder: Path, parts: Sequence[Evidence] = ()) -> Path:
    """Pack the finished runs of a study into a folder below ``folder``; return it.

    A part of a study also keeps what every resampling gave, so that it can be joined with the rest.
    Folders of this machine are replaced by names.

    Args:
        study: The study.
        runs: Its runs.
        folder: Folder of packed studies.
        parts: Those that were packed before (:func:`load_parts`).
    """
    networks, images = collect(study, runs, parts)
    missing = len(runs) - sum(network.members == 1 for network in networks)
    if missing == len(runs) or (missing and study.ensemble):
        raise ValueError(
            f"{missing} of {len(runs)} runs of {study.name} are not finished, and there is nothing "
            f"to pack or an ensemble to make. Finish it: chaosgate study run {study.path}"
        )
    rows = [[{k: v for k, v in row.items() if k != DIGEST} for row in one.rows] for one in networks]
    lines = [asdict(one) | {"rows": own} for one, own in zip(networks, rows, strict=True)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    places = {str(run.directory): run.training for run in runs}
    folders = folders_of(study, runs[0].root.parent)
    for place, name in {
        **places,
        **{folder: f"${{{key}}}" for key, folder in folders.items()},
    }.items():
        if Path(place).is_absolute():
            text = text.replace(json.dumps(place)[1:-1], name)
    named, columns = images.networks, list(images.bias)

    def table(found: Mapping[Any, Array], keys: Iterable[Any], *shape: int) -> Array:
        """An array (keys, networks, ...)."""
        rows = [[found.get((name, key), np.full(shape, nan)) for name in named] for key in keys]
        return np.array(rows).reshape(-1, len(named), *shape)

    arrays = {
        "networks": np.array(named, dtype=str),
        "columns": np.array(columns, dtype=str),
        "floors": table(images.floors, columns, 2),
        "reliability": table(images.reliability, MAIN, 4, networks[0].bins).astype(np.float32),
    }
    if missing:
        values = table(images.draws, columns, 1 + RESAMPLES)
        change = values[..., 1:] - values[..., :1]
        largest = np.abs(change).max(-1, keepdims=True, initial=0)
        arrays |= {
            "measured": values[..., :1],
            "largest": largest,
            "steps": _steps(change, largest),
        }
        arrays["index"] = np.array(images.index)
    else:
        covariance = np.array([*images.covariance.values()]).reshape(-1, len(named), len(named))
        deviation = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        correlation = _steps(covariance, deviation[:, :, None] * deviation[:, None])
        arrays |= {
            "bias": np.array([*images.bias.values()], np.float32).reshape(-1, len(named)),
            "deviation": deviation.astype(np.float32),
            "correlation": correlation[:, *np.tril_indices(len(named), -1)],
        }
    own = folder / study.name
    own.mkdir(parents=True, exist_ok=True)
    replace_file(own / ROWS, lzma.compress(text.encode(), preset=9))
    write_arrays(own / IMAGES, arrays)
    replace_file(own / f"{study.path.stem}.yaml", study.path.read_text(encoding="utf-8"))
    if (plan := runs[0].root.parent / study.name / NOTE).is_file():
        replace_file(own / NOTE, plan.read_text(encoding="utf-8"))
    return own


def _steps(values: Array, largest: Array) -> Array:
    """Values as shares of the largest, in 16 bits."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.rint(np.nan_to_num(values / largest) * _SCALE).astype(np.int16)


def load_packed(folder: Path) -> tuple[Study, Evidence]:
    """A packed study."""
    try:
        text = lzma.decompress((folder / ROWS).read_bytes()).decode()
        networks = [Network(**json.loads(line)) for line in text.splitlines()]
        with np.load(folder / IMAGES, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (lzma.LZMAError, zipfile.BadZipFile, zlib.error, ValueError, TypeError) as error:
        raise ValueError(f"{folder} is damaged ({error}); restore it, or pack it again.") from error
    named = [(str(variant), int(seed)) for variant, seed in arrays["networks"]]
    columns = [(str(part), str(metric)) for part, metric in arrays["columns"]]

    def by_name(table: Array, keys: Iterable[Any]) -> dict[Any, Array]:
        every = zip(product(keys, named), table.reshape(-1, *table.shape[2:]), strict=True)
        return {(name, key): one for (key, name), one in every if np.isfinite(one).all()}

    floors = by_name(arrays["floors"], columns)
    reliability = by_name(arrays["reliability"].astype(np.float64), MAIN)
    if "steps" in arrays:
        change = arrays["steps"] / _SCALE * arrays["largest"]
        values = arrays["measured"] + np.insert(change, 0, 0, -1)
        draws = by_name(values, columns)
        images = ImageErrors.of_draws(named, draws, floors, reliability, str(arrays["index"]))
    else:
        deviation = arrays["deviation"].astype(np.float64)
        rows, of = np.tril_indices(len(named), -1)
        whole = np.tile(np.eye(len(named)), (len(deviation), 1, 1))
        whole[:, rows, of] = whole[:, of, rows] = arrays["correlation"] / _SCALE
        whole *= deviation[:, :, None] * deviation[:, None]
        bias = dict(zip(columns, arrays["bias"].astype(np.float64), strict=True))
        covariance = dict(zip(columns, whole, strict=True))
        images = ImageErrors(named, bias, covariance, floors, reliability)
    (file,) = folder.glob("*.yaml")
    study = load_study(file, networks[0].rows[0].get("size"))
    # run --seeds adds to those of the file
    seeds = dict.fromkeys([*study.seeds, *(one.seed for one in networks if one.members == 1)])
    return study.model_copy(update={"seeds": tuple(seeds)}), (networks, images)


def load_parts(study: Study, runs: Sequence[Run], folders: Sequence[Path]) -> list[Evidence]:
    """Packed parts of a study: those of its runs that were tested as it asks."""
    tests, parts = {run.name: [*run.test_outputs] for run in runs}, []
    for folder in folders:
        networks, images = load_packed(folder)[1]
        if not images.index or study.ensemble:
            raise ValueError(
                f"{folder} cannot be joined with other runs: the study was finished when it was "
                "packed, or it has ensembles."
            )
        parts.append(([one for one in networks if tests.get(one.run) == one.tests], images))
    return parts

"""A finished study in two files, without its networks.

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
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from chaosgate.run.directory import DIGEST, replace_file
from chaosgate.study.plan.runs import Run, load_study
from chaosgate.study.plan.study import Study
from chaosgate.study.report.collect import Evidence, ImageErrors, Network, collect
from chaosgate.study.report.names import ROWS
from chaosgate.study.report.planned import NOTE

IMAGES = "images.npz"
_SCALE = 32767


def pack(study: Study, runs: Sequence[Run], folder: Path) -> Path:
    """Pack a finished study into a folder below ``folder``; return it.

    Folders of this machine are replaced by names.
    """
    networks, images = collect(study, runs)
    if missing := len(runs) - sum(network.members == 1 for network in networks):
        raise ValueError(
            f"{missing} of {len(runs)} runs of {study.name} are not finished; only a finished "
            f"study is packed. Finish it first: chaosgate study run {study.path}"
        )
    text = ""
    for network in networks:
        rows = [{k: v for k, v in row.items() if k != DIGEST} for row in network.rows]
        text += json.dumps({**asdict(network), "rows": rows}) + "\n"
    places = {str(run.directory): run.training for run in runs}
    places |= {value: f"${{{name}}}" for name, value in runs[0].folders.items()}
    for place, name in places.items():
        if Path(place).is_absolute():
            text = text.replace(json.dumps(place)[1:-1], name)
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
    own = folder / study.name
    own.mkdir(parents=True, exist_ok=True)
    replace_file(own / ROWS, lzma.compress(text.encode(), preset=9))
    replace_file(own / IMAGES, partial(np.savez_compressed, **arrays))
    replace_file(own / f"{study.path.stem}.yaml", study.path.read_text(encoding="utf-8"))
    if (plan := runs[0].root.parent / study.name / NOTE).is_file():
        replace_file(own / NOTE, plan.read_text(encoding="utf-8"))
    return own


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
    return load_study(file, networks[0].rows[0].get("size")), (networks, images)

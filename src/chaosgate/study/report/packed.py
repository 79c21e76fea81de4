"""A study in two files, without its networks.

``rows.jsonl.xz``
    One line per network in JSON: method, levels, seed, configuration, curves and test rows.
``images.npz``
    Per part, metric and network the standard deviation and the bias over resamplings, the
    correlations between all networks (times 32,767, lower triangle), and the noise floors of ECE.

They reproduce every table and interval, also of contrasts that no report has shown yet. Weights,
logs and outputs of single images are not kept.
"""

import json
import lzma
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, fields
from math import nan
from pathlib import Path

import numpy as np

from chaosgate.run.files import DIGEST, replace_file
from chaosgate.run.outputs import write_arrays
from chaosgate.study.plan.runs import Run, folders_of, load_study
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
            f"{missing} of {len(runs)} runs of {study.name} are not finished. Finish them: "
            f"chaosgate study run {study.path}"
        )
    rows = [[{k: v for k, v in row.items() if k != DIGEST} for row in one.rows] for one in networks]
    lines = [asdict(one) | {"rows": own} for one, own in zip(networks, rows, strict=True)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    root = runs[0].root.parent
    places = {str(run.directory): run.training for run in runs}
    places |= {place: f"${{{key}}}" for key, place in folders_of(study, root).items()}
    for place, name in places.items():
        if Path(place).is_absolute():
            text = text.replace(json.dumps(place)[1:-1], name)
    named, columns = images.networks, list(images.bias)

    unknown = np.full(2, nan)
    floors = [[images.floors.get((name, one), unknown) for name in named] for one in columns]
    covariance = np.array([*images.covariance.values()]).reshape(-1, len(named), len(named))
    deviation = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.nan_to_num(covariance / (deviation[:, :, None] * deviation[:, None]))
    steps = np.rint(correlation * _SCALE).astype(np.int16)
    arrays = {
        "networks": np.array(named, dtype=str),
        "columns": np.array(columns, dtype=str),
        "bias": np.array([*images.bias.values()], np.float32).reshape(-1, len(named)),
        "deviation": deviation.astype(np.float32),
        "correlation": steps[:, *np.tril_indices(len(named), -1)],
        "floors": np.array(floors).reshape(-1, len(named), 2),
    }
    own = folder / study.name
    own.mkdir(parents=True, exist_ok=True)
    replace_file(own / ROWS, lzma.compress(text.encode(), preset=9))
    write_arrays(own / IMAGES, arrays)
    replace_file(own / f"{study.path.stem}.yaml", study.path.read_text(encoding="utf-8"))
    if (plan := root / study.name / NOTE).is_file():
        replace_file(own / NOTE, plan.read_text(encoding="utf-8"))
    return own


def load_packed(folder: Path) -> tuple[Study, Evidence]:
    """A packed study."""
    try:
        text = lzma.decompress((folder / ROWS).read_bytes()).decode()
        lines = [json.loads(line) for line in text.splitlines()]
        with np.load(folder / IMAGES, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (lzma.LZMAError, zipfile.BadZipFile, zlib.error, ValueError) as error:
        raise ValueError(f"{folder} is damaged ({error}); restore it, or pack it again.") from error
    known = [one.name for one in fields(Network)]
    networks = [Network(**{key: line[key] for key in known}) for line in lines]
    named = [(str(variant), int(seed)) for variant, seed in arrays["networks"]]
    columns = [(str(part), str(metric)) for part, metric in arrays["columns"]]

    deviation = arrays["deviation"].astype(np.float64)
    rows, of = np.tril_indices(len(named), -1)
    whole = np.tile(np.eye(len(named)), (len(deviation), 1, 1))
    whole[:, rows, of] = whole[:, of, rows] = arrays["correlation"] / _SCALE
    whole *= deviation[:, :, None] * deviation[:, None]
    keys = [(name, column) for column in columns for name in named]
    floors = zip(keys, arrays["floors"].reshape(-1, 2), strict=True)
    images = ImageErrors(
        named,
        dict(zip(columns, arrays["bias"].astype(np.float64), strict=True)),
        dict(zip(columns, whole, strict=True)),
        {key: one for key, one in floors if np.isfinite(one).all()},
    )
    (file,) = folder.glob("*.yaml")
    study = load_study(file, networks[0].rows[0].get("size"))
    # run --seeds adds to those of the file
    seeds = dict.fromkeys([*study.seeds, *(one.seed for one in networks if one.members == 1)])
    return study.model_copy(update={"seeds": tuple(seeds)}), (networks, images)

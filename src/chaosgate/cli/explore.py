"""``chaosgate explore``: a page with sliders: what gates do to the features of a photograph."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveFloat, PositiveInt

import chaosgate as cg

if TYPE_CHECKING:
    from torch import Tensor

_STRIPES = "anisotropic:vertical=4,horizontal=0.25"


def explore(
    *,
    to: Path = Path("explorer.html"),  # noqa: B008
    operators: Sequence[str] = ("dirichlet", "massive:mu=1", _STRIPES, "periodic", "identity"),
    grids: Sequence[PositiveInt] = (7, 14, 28),
    log_std: Sequence[PositiveFloat] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
) -> None:
    """Write one HTML page with sliders that needs no server and no network.

    The sliders choose operator, grid, log_std and realization. The page shows the field, the gate,
    spectrum and Green kernel, the feature map of a photograph under the gate, and how many
    orderings survive, next to Dropout and DropBlock at the same injected energy. All numbers are
    computed here and stored in the page.

    Examples:
      chaosgate explore                      writes explorer.html, about a minute
      chaosgate explore --operators dirichlet massive:mu=0.1 massive:mu=10 --to mass.html
      chaosgate explore --operators dirichlet my_module.MyOperator --grids 14 --log_std 0.5 1 2

    Args:
        to: The file to write; it must not exist.
        operators: Operators to offer, NAME[:ARG=VALUE,...].
        grids: Sites per side, 2 to 56.
        log_std: Strengths up to 2, where DropBlock can inject as much energy.
    """
    from json import dumps

    from jinja2 import Template
    from matplotlib import colormaps

    from chaosgate.cli.gates import parse_operator
    from chaosgate.compat import exploration

    if to.exists():
        raise FileExistsError(f"{to} exists already; remove it, or give another file with --to.")
    photo, maps = stored_features()
    strengths = sorted(set(log_std))
    if max(grids) > max(maps) or strengths[-1] > 2:
        raise ValueError(f"give --grids up to {max(maps)} sites, and --log_std up to 2.")
    features = {n: feature_map(maps, n) for n in sorted(set(grids))}
    made = {name: parse_operator(name) for name in operators}
    data = exploration.explore(features, made, strengths, seed=0)
    data["colors"] = {
        name: (255 * colormaps[name](range(256))[:, :3]).round().astype("u1").tobytes()
        for name in ("viridis", "magma", "RdBu_r")
    }
    data["grids"], data["log_stds"] = list(map(str, features)), [f"{one:g}" for one in strengths]
    data["realizations"] = list(exploration.REALIZATIONS)
    template = Path(__file__).with_name("explore.html").read_text(encoding="utf-8")
    page = Template(template, autoescape=True).render(
        data=dumps(_plain(data), allow_nan=False).replace("<", "\\u003c"),
        photo=_plain(photo),
        version=cg.__version__,
        seed=0,
    )
    to.write_text(page, encoding="utf-8")
    print(f"{to}: open it in a browser; it needs nothing else")


def stored_features() -> "tuple[bytes, dict[int, Tensor]]":
    """The photograph as JPEG, and feature maps (n, n) of it by n, of EfficientNet-Lite0."""
    import numpy as np
    import torch

    with np.load(Path(__file__).with_name("explore_photo.npz")) as stored:
        names = [name for name in stored.files if name.startswith("map")]
        maps = {int(name[3:]): torch.from_numpy(stored[name]) for name in names}
        return stored["photo"].tobytes(), maps


def feature_map(maps: "Mapping[int, Tensor]", n: int) -> "Tensor":
    """The map of ``n`` sites per side: a stored one, or the next larger one averaged."""
    from torch.nn.functional import adaptive_avg_pool2d

    larger = min(size for size in maps if size >= n)
    return adaptive_avg_pool2d(maps[larger][None, None], (n, n))[0, 0]


def _plain(value: Any) -> Any:
    """What JSON can hold: maps as the base64 of little-endian float32, numbers if they are
    finite.
    """
    from base64 import b64encode
    from math import isfinite

    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if hasattr(value, "numpy"):
        value = value.float().contiguous().numpy().astype("<f4").tobytes()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return None if isinstance(value, float) and not isfinite(value) else value

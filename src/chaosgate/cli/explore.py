"""``chaosgate explore``: a page with sliders: what gates do to the features of a photograph."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import NonNegativeInt, Path_fc, PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from torch import Tensor

    from chaosgate.field import Operator

_STRIPES = "anisotropic:vertical=4,horizontal=0.25"


def explore(
    *,
    to: Path_fc = "explorer.html",
    operators: Sequence[str] = ("dirichlet", "massive:mu=1", _STRIPES, "periodic", "identity"),
    grids: Sequence[PositiveInt] = (7, 14, 28),
    log_std: Sequence[PositiveFloat] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
    seed: NonNegativeInt = 0,
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
        log_std: Strengths up to 2.
        seed: Selects the noise.
    """
    from rich.console import Console

    from chaosgate.cli.flags import parse_operator
    from chaosgate.data.atomic import replace_file

    if Path(to).exists():
        raise FileExistsError(f"{to} exists already; remove it, or give another file with --to.")
    made = {name: parse_operator(name) for name in operators}
    with Console(stderr=True).status("computing gates"):
        page = explorer_page(made, sorted(set(grids)), sorted(set(log_std)), seed)
    replace_file(Path(to), page)
    print(f"{to}: open it in a browser; it needs nothing else")


def explorer_page(
    operators: "Mapping[str, Operator]",
    grids: Sequence[int],
    log_stds: Sequence[float],
    seed: int = 0,
) -> str:
    """The page with all numbers in it.

    Args:
        operators: By the names that the slider shows.
        grids: Sites per side, 2 to 56.
        log_stds: Strengths, each at most 2.
        seed: Selects the noise.
    """
    import base64
    import json

    import numpy as np
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from matplotlib import colormaps

    from chaosgate.compat.exploration import REALIZATIONS
    from chaosgate.compat.exploration import explore as compute
    from chaosgate.run.provenance import versions

    photo, maps = stored_features()
    if min(grids) < 2 or max(grids) > max(maps):
        raise ValueError(f"--grids: give 2 to {max(maps)} sites per side.")
    if max(log_stds) > 2:
        raise ValueError(
            f"--log_std {max(log_stds):g}: no DropBlock injects the energy of a Wick gate beyond 2."
        )
    found = compute({n: feature_map(maps, n) for n in grids}, operators, log_stds, seed)
    colours = {
        name: (colormaps[name](np.arange(256))[:, :3] * 255).round().astype(np.uint8).tobytes()
        for name in ("viridis", "magma", "RdBu_r")
    }
    data = {
        **_plain(found),
        "grids": [str(n) for n in grids],
        "log_stds": [f"{value:g}" for value in log_stds],
        "realizations": list(REALIZATIONS),
        "colours": {name: base64.b64encode(rgb).decode() for name, rgb in colours.items()},
    }
    loader = PackageLoader(__package__, ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    return environment.get_template("explore.html").render(
        data=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
        photo=base64.b64encode(photo).decode(),
        version=versions()["chaosgate"],
        seed=seed,
    )


def stored_features() -> "tuple[bytes, dict[int, Tensor]]":
    """The photograph as JPEG, and feature maps (n, n) of it by n, of EfficientNet-Lite0."""
    from importlib.resources import as_file, files

    import numpy as np
    import torch

    with as_file(files("chaosgate.cli") / "explore_photo.npz") as path, np.load(path) as stored:
        names = [name for name in stored.files if name.startswith("map")]
        maps = {int(name[3:]): torch.from_numpy(stored[name]) for name in names}
        return stored["photo"].tobytes(), maps


def feature_map(maps: "Mapping[int, Tensor]", n: int) -> "Tensor":
    """The map of ``n`` sites per side: a stored one, or the next larger one averaged."""
    from torch.nn.functional import adaptive_avg_pool2d

    larger = min(size for size in maps if size >= n)
    return adaptive_avg_pool2d(maps[larger][None, None], (n, n))[0, 0]


def _plain(value: Any) -> Any:
    """What JSON can hold: maps as the base64 of little-endian float32, numbers as they are."""
    import base64
    import math

    from torch import Tensor

    if isinstance(value, Tensor):
        return base64.b64encode(value.float().contiguous().numpy().astype("<f4").tobytes()).decode()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""``chaosgate study run sweep``: a study of one gate at several strengths, without a file of it."""

from collections.abc import Sequence
from typing import Any

import yaml
from jsonargparse.typing import PositiveInt

from chaosgate.run.files import config_hash, find_config, read_yaml, replace_file

_STRENGTHS = ("log_std", "p", "sigma", "gamma")


def sweep(
    *,
    config: Sequence[str],
    values: str,
    gate: str = "noise/gch",
    seeds: PositiveInt = 3,
    jobs: PositiveInt = 1,
) -> int:
    """Train with a gate at several strengths and without noise; select on validation images.

    The report says if the selected strength is the smallest or largest that was tried. Sweeps share
    their runs: with one more value only that one is trained.

      chaosgate study run sweep -c base -c data/fashion_mnist --gate noise/gch --values 0.3,1,2

    Args:
        config: What all runs share: files, or shipped names; -c once for each.
        values: Strengths, with commas: the log_std, p, sigma or gamma of the gate.
        gate: File or shipped name of the gate.
        seeds: Runs of each strength.
        jobs: Runs at a time.
    """
    from chaosgate.cli import study

    path = find_config(gate)
    method, numbers = path.stem, sorted({float(value) for value in values.split(",")})
    swept: dict[str, Any] = {"key": strength_key(read_yaml(path), gate), "values": numbers}
    swept["paper"] = numbers[len(numbers) // 2]  # a value here makes the report select
    content: dict[str, Any] = {
        "project": "sweeps",
        "base": [str(find_config(one).absolute()) for one in config],
        "methods": {"none": "noise/none", method: str(path.absolute())},
        "strength": {method: swept},
        "reference": "none",
        "seeds": list(range(seeds)),
        "checkpoint": "last",
    }
    file = study.ROOT / f"sweep_{method}_{config_hash(content)}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, yaml.safe_dump(content, sort_keys=False))
    return study.run(str(file), jobs=jobs)


def strength_key(config: dict[str, Any], name: str) -> str:
    """The dotted key of the strength of a gate; of a matched gate that of the gate it matches."""
    key, node = "noise.gate", (config.get("noise") or {}).get("gate") or {}
    while arguments := node.get("init_args"):
        key += ".init_args"
        if found := [one for one in _STRENGTHS if arguments.get(one) is not None]:
            return f"{key}.{found[0]}"
        key, node = f"{key}.match", arguments.get("match") or {}
    raise ValueError(f"{name} gives no strength ({', '.join(_STRENGTHS)}) of noise.gate.")

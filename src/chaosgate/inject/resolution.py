"""The stages of a network that does not name them: from the resolution of what its modules return in a dry run."""

import math
import re
from collections.abc import Sequence

from torch import nn

from chaosgate.inject.survey import Survey


def stages_by_resolution(survey: Survey) -> list[str]:
    """Four modules: the last ones at each of the four coarsest resolutions, or quarter depths where there is only one.

    A module counts at the resolution of its output, but not if it is a step inside a block that changes the resolution,
    and not if it spans the network.
    """
    grids = grids_of(survey)
    sizes = {name: math.prod(grid) for name, grid in grids.items()}
    distinct = sorted(set(sizes.values()), reverse=True)
    steps = [name for name in grids if not _inside_a_change(name, sizes) and not spans(name, sizes)]
    last = {size: _outermost(survey, [n for n in steps if sizes[n] == size]) for size in distinct}
    found = [name for name in last.values() if name]
    if len(found) >= 4:
        return found[-4:]
    blocks = _repeated_blocks(survey.model, grids)
    if len(blocks) >= 4:
        layout = survey.layout(blocks[-1])
        prefix = layout is not None and layout.prefix > 0
        pooled_by_token = layout is not None and prefix and not survey.reads_grid(blocks[-1], layout)
        return quarter_depths(survey.model, blocks, pooled_by_token)
    listing = ", ".join(f"{name} ({'x'.join(map(str, grids[name]))})" for name in found) or "none"
    raise ValueError(
        f"{type(survey.model).__name__} has no four stages of different resolution, nor a row of equal blocks; maps "
        f"found: {listing}. Name modules instead of L1 to L4, e.g. stages=[{found[-1] if found else 'features'!r}]."
    )


def quarter_depths(model: nn.Module, blocks: Sequence[str], pooled_by_token: bool) -> list[str]:
    """Four of the blocks, the last ones of each quarter; behind the last but two a class token is out of reach."""
    usable = len(blocks) - 2 if pooled_by_token else len(blocks)
    if usable < 4:
        raise ValueError(
            f"{type(model).__name__} has only {len(blocks)} blocks, too few for four stages. Name a module instead of "
            f"L1 to L4, e.g. {blocks[0]!r}."
        )
    return [blocks[math.ceil(usable * k / 4) - 1] for k in range(1, 5)]


def grids_of(survey: Survey) -> dict[str, tuple[int, ...]]:
    """The grids of all modules that return features on more than one site, in the order in which they finish."""
    found = {}
    for name, output in survey.outputs.items():
        grid = survey.grid(name)
        if grid is not None and output is not survey.result and math.prod(grid) > 1:
            found[name] = grid
    return found


def _inside_a_change(name: str, sizes: dict[str, int]) -> bool:
    """Whether a module around it, short of one that spans the network, returns another resolution."""
    steps = name.split(".")
    around = [".".join(steps[:n]) for n in range(1, len(steps))]
    return any(sizes.get(outer, sizes[name]) != sizes[name] and not spans(outer, sizes) for outer in around)


def spans(name: str, sizes: dict[str, int]) -> bool:
    """Whether there are more than two resolutions inside a module."""
    inside = {size for other, size in sizes.items() if other == name or other.startswith(name + ".")}
    return len(inside) > 2


def _outermost(survey: Survey, names: list[str]) -> str:
    """The last of the modules to finish: of those that return the same tensor, the one around the others."""
    if not names:
        return ""
    last = survey.outputs[names[-1]]
    return min((name for name in names if survey.outputs[name] is last), key=lambda name: name.count("."))


def _repeated_blocks(model: nn.Module, grids: dict[str, tuple[int, ...]]) -> list[str]:
    """The longest row of equal blocks: numbered members of one container, of one class."""
    modules = dict(model.named_modules())
    rows: dict[tuple[str, type], dict[int, str]] = {}
    for name in grids:
        numbered = re.fullmatch(r"(.*?)(\d+)", name)
        if numbered:
            rows.setdefault((numbered[1], type(modules[name])), {})[int(numbered[2])] = name
    longest = max(rows.values(), key=len, default={})
    return [longest[number] for number in sorted(longest)]

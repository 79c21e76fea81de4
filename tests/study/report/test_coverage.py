r"""Do 95 % intervals cover, and does a table without any effect stay without marks? Simulated studies with known truth.

A network sees image :math:`i` with evidence :math:`x_i = \mu + \eta + \tau u_i + \sigma e_i` (:math:`u_i` common to
all networks, :math:`e_i` its own), is right with probability :math:`p(x) = .1 + .9 / (1 + e^{-x})`, and claims
:math:`c(x) = p(kx + d)`. Seeds vary :math:`k` and :math:`\eta`. Which answers are right is correlated between networks.
The truth of a network is an integral over :math:`x`, that of a method its mean over seeds.

The recipe of the intervals was chosen among six on simulations of this kind; the random numbers here are others.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from chaosgate.run.outputs import Samples
from chaosgate.study import load_study
from chaosgate.study.report.inference import interval_of, is_biased, resample
from chaosgate.study.report.table import Entry, Row, Table
from tests.study.toy_studies import study_writer

pytestmark = [pytest.mark.slow, pytest.mark.statistical]
METRICS = ("top1", "nll", "ece")
CLEAN = ("clean", 0)
GROUPS = {"clean": [[CLEAN]]}
IMAGES, MU, TAU, SIGMA = 2000, 2.6, 1.6, 1.0
Floats = NDArray[np.float64]


class Method(NamedTuple):
    """What a method makes of networks: slope and shift of the claimed evidence, and their spread over seeds."""

    slope: float
    shift: float
    slope_spread: float = 0.07
    ability_spread: float = 0.12


class Network(NamedTuple):
    slope: float
    shift: float
    ability: float


REFERENCE = Method(1.2, 0.58)  # over-confident: ECE .05
METHODS = {"moderate": Method(1.1, 0.28), "nearly calibrated": Method(1.0, 0.1)}


def share(x: Floats) -> Floats:
    return 0.1 + 0.9 / (1 + np.exp(-x))


def truth(network: Network) -> Floats:
    """Top-1, NLL and ECE on infinitely many images."""
    spread = np.hypot(TAU, SIGMA)
    z = np.linspace(-7, 7, 3001)
    weight = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    x = MU + network.ability + spread * z
    right, claimed = share(x), share(network.slope * x + network.shift)
    bins = np.clip(np.ceil(claimed * 15).astype(int) - 1, 0, 14)
    ece = np.abs(np.bincount(bins, weight * (claimed - right), 15)).sum()
    nll = -(weight * (right * np.log(claimed) + (1 - right) * np.log((1 - claimed) / 9))).sum()
    return np.array([(weight * right).sum(), nll, ece])


def train(method: Method, generator: np.random.Generator) -> Network:
    a, b = generator.standard_normal(2)
    return Network(method.slope + method.slope_spread * a, method.shift, method.ability_spread * b)


def ask(networks: Sequence[Network], generator: np.random.Generator) -> list[Samples]:
    """What each network says about the same images; answers are right together with correlation .64."""
    common, luck = generator.standard_normal((2, IMAGES))
    found = []
    for network in networks:
        own, own_luck = generator.standard_normal((2, IMAGES))
        x = MU + network.ability + TAU * common + SIGMA * own
        correct = ndtr(0.8 * luck + 0.6 * own_luck) < share(x)
        claimed = share(network.slope * x + network.shift)
        nll = -np.log(np.where(correct, claimed, (1 - claimed) / 9))
        index = np.arange(IMAGES, dtype=np.int32)
        found.append(Samples((CLEAN,), claimed[None].astype(np.float32), correct[None], nll[None], index))
    return found


def draws(samples: Samples) -> dict[str, Floats]:
    found = resample(samples, GROUPS, METRICS)
    return {metric: found["clean", metric] for metric in METRICS}


def population(method: Method) -> Floats:
    """Mean over seeds, by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(21)
    weights = weights / weights.sum()
    return sum(
        v * w * truth(Network(method.slope + method.slope_spread * a, method.shift, method.ability_spread * b))
        for a, v in zip(nodes, weights, strict=True)
        for b, w in zip(nodes, weights, strict=True)
    )


@pytest.mark.parametrize("setting", METHODS)
def test_intervals_cover_what_their_footnote_says_they_are_about(setting: str) -> None:
    """600 studies: the standard error of a coverage of 95 % is 0.9 %."""
    studies, most = 600, 5
    method = METHODS[setting]
    generator = np.random.default_rng([2026, 11, len(setting)])
    of_methods = population(method) - population(REFERENCE)
    covered: dict[tuple[int, str], int] = {}
    for _ in range(studies):
        mine, theirs = ([train(one, generator) for _ in range(most)] for one in (method, REFERENCE))
        kept = [draws(samples) for samples in ask([*mine, *theirs], generator)]
        of_these = truth(mine[0]) - truth(theirs[0])
        for seeds in (1, 3, 5):
            for k, metric in enumerate(METRICS):
                drawn = [kept[s][metric] - kept[most + s][metric] for s in range(seeds)]
                found = interval_of([float(one[0]) for one in drawn], drawn, is_biased(metric))
                assert found is not None
                assert found.over == ("these two networks" if seeds == 1 else "seeds and images")
                true = of_these[k] if seeds == 1 else of_methods[k]
                covered[seeds, metric] = covered.get((seeds, metric), 0) + (found.low <= true <= found.high)
    shares = {key: count / studies for key, count in covered.items()}
    print(setting, shares)
    assert {key: value for key, value in shares.items() if not 0.92 <= value <= 0.98} == {}


def null_table(path: Path, kept: dict[str, list[dict[str, Floats]]]) -> Table:
    """A table of methods that are all the same."""

    def entry(name: str, metric: str, reference: Entry | None = None) -> Entry:
        drawn = {seed: one[metric] for seed, one in enumerate(kept[name])}
        return Entry(metric, {seed: float(one[0]) for seed, one in drawn.items()}, drawn, reference=reference)

    columns = tuple(("clean", metric) for metric in METRICS)
    rows = []
    for name in kept:
        references = {metric: None if name == "none" else entry("none", metric) for metric in METRICS}
        entries = {("clean", metric): entry(name, metric, reference) for metric, reference in references.items()}
        nothing = Entry("nll", {})
        seeds = tuple(range(len(kept[name])))
        rows.append(
            Row(name, name, {}, name == "none", seeds, entries, nothing, nothing, frozenset(), nothing, False, "last")
        )
    return Table(load_study(path), "null", columns, tuple(rows), {})


def test_a_table_of_equal_methods_has_no_marks_but_in_5_of_100(tmp_path: Path) -> None:
    """300 tables of four methods and 3 or 5 seeds: the standard error of 5 % is 1.3 %."""
    path, tables, most = study_writer(tmp_path)(), 300, 5
    generator = np.random.default_rng([2026, 11, 17])
    marked = dict.fromkeys([(seeds, what) for seeds in (3, 5) for what in ("results", "contrasts")], 0)
    for _ in range(tables):
        networks = [train(REFERENCE, generator) for _ in range(4 * most)]
        kept = [draws(samples) for samples in ask(networks, generator)]
        for seeds in (3, 5):
            by_method = {name: kept[k * most : k * most + seeds] for k, name in enumerate(("none", "a", "b", "c"))}
            table = null_table(path, by_method)
            assert len(table.contrasts) == 3 and len(table.contrasts[0].entries) == 2
            marked[seeds, "results"] += bool(table.marks)
            marked[seeds, "contrasts"] += bool(table.contrast_marks)
    shares = {key: count / tables for key, count in marked.items()}
    print("any mark", shares)
    assert {key: value for key, value in shares.items() if value > 0.06} == {}

"""The studies in results/: their packed rows give the committed tables and come from one commit."""

import io
from pathlib import Path

import pandas as pd
import pytest

from chaosgate.study.report.frame import results_of
from chaosgate.study.report.names import ROWS
from chaosgate.study.report.packed import load_packed

RESULTS = Path(__file__).parents[3] / "results"
PACKED = sorted(path.parent for path in RESULTS.glob(f"*/{ROWS}"))


@pytest.mark.parametrize("folder", PACKED, ids=lambda path: path.name)
def test_packed_rows_give_the_committed_table(folder: Path) -> None:
    """Values and intervals to 1e-12, selections and marks exactly; rows of known commits."""
    results = results_of(*load_packed(folder))
    text = io.StringIO(results.frame.to_csv(index=False, float_format="%.13g"))
    made, kept = (pd.read_csv(source) for source in (text, folder / "table.csv"))
    pd.testing.assert_frame_equal(made, kept, check_exact=False, rtol=0, atol=1e-12)
    rows = [row for network in results.networks for row in network.rows]
    several = folder.name.startswith("cifar10_timing")  # their runs are shared
    commits = {row["commit"] for row in rows}
    assert rows and (several or len(commits) == 1) and not any("dirty" in c for c in commits)
    known = ("config_hash", "n", "versions")
    assert all(row[key] for row in rows for key in known) and all("seed" in row for row in rows)


def test_networks_that_several_studies_trained_agree_to_the_last_bit() -> None:
    """Same configuration and cell: commits, machines and minutes differ, numbers do not."""
    keys = ["config_hash", "monte_carlo", "weights_file", "corruption", "severity"]
    numbers = ["top1", "nll", "ece", "temperature", "nll_T"]
    networks = [one for folder in PACKED for one in load_packed(folder)[1][0] if one.members == 1]
    rows = pd.DataFrame(
        [
            {key: row.get(key) for key in [*keys, *numbers, "commit"]}
            for one in networks
            for row in one.rows
        ]
    )
    groups = rows.fillna({"weights_file": ""}).groupby(keys, dropna=False)
    assert (groups.commit.nunique() == 3).sum() == 6 * 8
    assert (groups[numbers].nunique(dropna=False) == 1).all(axis=None)

from collections.abc import Callable

import pytest

from chaosgate.study import Run
from chaosgate.study.plan.runs import load_study
from chaosgate.study.report.build import build_table
from chaosgate.study.report.collect import collect
from chaosgate.study.report.table import Table
from tests.study.toy_studies import Plan, Write


@pytest.fixture
def table(plan: Plan, write_study: Write) -> Callable[..., Table]:
    """Builds the table of a study with the given keys, whose runs are filled one by one."""

    def build(fill: Callable[[Run], None], **keys: object) -> Table:
        runs = plan(**keys)
        for run in runs:
            fill(run)
        return build_table(load_study(write_study(**keys)), runs, collect(runs))

    return build

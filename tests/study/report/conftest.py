from collections.abc import Callable

import pytest

from chaosgate.study import Run
from chaosgate.study.plan.runs import load_study
from chaosgate.study.report.collect import collect
from chaosgate.study.report.frame import Results, results_of
from tests.study.toy_studies import Plan, Write


@pytest.fixture
def build(plan: Plan, write_study: Write) -> Callable[..., Results]:
    """Results of a study with the given keys, whose runs are filled one by one."""

    def made(fill: Callable[[Run], object], **keys: object) -> Results:
        runs = plan(**keys)
        study = load_study(write_study(**keys))
        for run in runs:
            fill(run)
        return results_of(study, collect(study, runs), runs)

    return made

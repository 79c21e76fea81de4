"""Studies: many runs as one comparison. A YAML file is planned, run and reported.

Data flow: :func:`load_study`, :func:`plan_runs`, one process per run, result rows, one data frame
(:mod:`chaosgate.study.report.frame`, not imported here: it needs pandas).
"""

from chaosgate.study.plan.runs import Run, load_study, plan_runs
from chaosgate.study.plan.study import Study

__all__ = ["Run", "Study", "load_study", "plan_runs"]

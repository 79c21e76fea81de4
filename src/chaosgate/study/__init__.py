"""Studies: many runs as one comparison. A YAML file is planned, run and reported.

Data flow: :func:`load_study`, :func:`plan_runs`, workers (one process per run), result rows, :func:`build_table`.
"""

from chaosgate.study.plan.runs import Run, load_study, plan_runs
from chaosgate.study.plan.study import Study
from chaosgate.study.report.build import build_table
from chaosgate.study.report.table import Table

__all__ = ["Run", "Study", "Table", "build_table", "load_study", "plan_runs"]

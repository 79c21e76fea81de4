"""All cases of bad input."""

from tests.bad_input import commands, data, gates, operators, studies, task
from tests.bad_input.case import Case

CASES: list[Case] = [
    *gates.CASES,
    *gates.CALLBACK,
    *operators.CASES,
    *data.CASES,
    *task.CASES,
    *task.TRAINER,
    *studies.CASES,
    *commands.CASES,
]

"""Every statement of the paper as an executable check of the shipped modules."""

from chaosgate.compat.verify.finding import EXACT, FALSE_ALARM, POWER, Finding
from chaosgate.compat.verify.statements import STATEMENTS, Outcome, Statement, Verification, verify
from chaosgate.compat.verify.subject import Makers, Subject

__all__ = [
    "EXACT",
    "FALSE_ALARM",
    "POWER",
    "STATEMENTS",
    "Finding",
    "Makers",
    "Outcome",
    "Statement",
    "Subject",
    "Verification",
    "verify",
]

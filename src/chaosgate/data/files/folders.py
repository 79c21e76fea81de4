from chaosgate.data.listing import *  # old path; removed when every import is changed
from chaosgate.data.listing import SPLITS


def split_of(folder: str) -> str | None:
    return next((split for split, names in SPLITS.items() if folder in names), None)

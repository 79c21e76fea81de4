"""Are the data there, for the training and for every test? Asked once, before a study trains for days."""

import json
from typing import Any


class DataCheck:
    """Builds every data module once, which looks for its folders, e.g. for every cell; no image is read."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def complaint(self, config: dict[str, Any]) -> str | None:
        """What the data module of a whole configuration has against its folder, in a sentence; None if nothing."""
        from jsonargparse import ArgumentParser
        from lightning.pytorch import LightningDataModule

        entry = config["data"]
        if (key := json.dumps(entry, sort_keys=True)) in self._seen:
            return None
        self._seen.add(key)
        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(LightningDataModule, "data")
        try:
            parser.instantiate(parser.parse_object({"data": entry}))
        except (OSError, ValueError) as error:
            return " ".join(str(error).split())
        return None

"""``chaosgate advise``: should a network train with noise?"""

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse.typing import PositiveInt

import chaosgate as cg

if TYPE_CHECKING:
    from torch import Tensor


def advise(run: Path, *, count: PositiveInt = 5000) -> None:
    """Estimate from a run without noise whether noise will help, how much, and where to start.

    It compares the NLL of the last network on training and on validation images, both in evaluation
    mode and without augmentation, with what noise changed in the kept studies.

    Args:
        run: Directory of a run that was trained without noise.
        count: Largest number of images per set, evenly spaced.
    """
    train, val = nll_of(run, count)
    print(f"{run}: training NLL {train.mean():.3f}, validation NLL {val.mean():.3f}")
    print(cg.advise(train, val))


def nll_of(run: Path, count: int) -> "list[Tensor]":
    """NLL of every training image and of every validation image, without augmentation."""
    import torch
    from torch.utils.data import DataLoader, Subset

    from chaosgate.cli.sources import find_network
    from chaosgate.run.files import RunDirectory
    from chaosgate.run.identity import noises

    directory = RunDirectory(run)
    source = find_network(str(directory.selected("last")))
    if noises(directory.settings()):
        raise ValueError(f"{run} was trained with noise. Give a run with -c noise/none.")
    if (data := source.data) is None:
        raise ValueError(f"the images of {run} were not found; see 'data:' of its config.yaml.")
    data.setup("fit")
    loss, nll = torch.nn.CrossEntropyLoss(reduction="none"), []
    for loader in (data.plain_train_dataloader(), data.val_dataloader()):
        size: int = len(loader.dataset)
        chosen = Subset(loader.dataset, range(0, size, -(-size // count)))
        parts = DataLoader(chosen, loader.batch_size, collate_fn=loader.collate_fn)
        with torch.no_grad():
            losses = [loss(source.model(data.normalize(x.image)), x.target) for x in parts]
        nll.append(torch.cat(losses))
    return nll

"""``chaosgate advise`` and ``strength``: should a network train with noise, and how strong?"""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse.typing import PositiveInt


def advise(run: Path, *, count: PositiveInt = 5000) -> None:
    """Read off a run without noise whether noise will help, how much, and where to start.

    It compares the NLL of the last network on training and on validation images, both in evaluation
    mode and without augmentation, with what noise changed in the kept studies.

    Args:
        run: Directory of a run that was trained without noise.
        count: Images of each set at most, evenly spaced.
    """
    import torch
    from torch.utils.data import DataLoader, Subset

    from chaosgate.cli.sources import find_network
    from chaosgate.run.advice import advise as advice
    from chaosgate.run.directory import RunDirectory
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
        size: int = len(loader.dataset)  # type: ignore[arg-type]
        chosen = Subset(loader.dataset, range(0, size, -(-size // count)))
        parts = DataLoader(chosen, loader.batch_size, collate_fn=loader.collate_fn)
        with torch.no_grad():
            losses = [loss(source.model(data.normalize(x.image)), x.target) for x in parts]
        nll.append(torch.cat(losses))
    print(f"{run}: training NLL {nll[0].mean():.3f}, validation NLL {nll[1].mean():.3f}")
    print(advice(*nll))


def strength(
    network: str,
    *,
    stage: str = "L4",
    arguments: Sequence[str] = (),
    images: Path | None = None,
    count: PositiveInt = 64,
    figure: Path = Path("strength.png"),  # noqa: B008
) -> None:
    """Show what noise of each strength does to a network: energy, logits, predictions, orderings.

    Examples:
      chaosgate strength runs/MY_RUN
      chaosgate strength resnet50 --arguments pretrained=true --images photos/ --stage L3

    Args:
        network: A run directory, a checkpoint file, or the name of a timm model.
        stage: L1 to L4, or a module.
        arguments: NAME=VALUE for timm.create_model.
        images: Folder of images (the run's own, else Fashion-MNIST).
        count: Number of images.
        figure: File of the plot.
    """
    from chaosgate.cli.gates import named_values
    from chaosgate.cli.sources import find_images, find_network
    from chaosgate.compat.strength import suggest_strength

    source = find_network(network, **named_values(arguments))
    found = suggest_strength(source.model, find_images(source, images, count, None), stage)
    found.figure().savefig(figure)
    print(f"Gaussian Chaos at {stage} of {source.name}\n{found}\nPlot: {figure}")

"""``chaosgate sites``: where in a network a gate can go, and what it changes there."""

from jsonargparse.typing import PositiveFloat, PositiveInt


def sites(
    network: str,
    *,
    backbone: str | None = None,
    pretrained: bool = False,
    num_classes: PositiveInt | None = None,
    in_chans: PositiveInt | None = None,
    image_size: PositiveInt | None = None,
    log_std: PositiveFloat = 1.0,
    json: bool = False,
) -> None:
    """List every place of a network where a gate is worth trying.

    For each place: stage, module, grid, channels, layout, whether a gate survives there, and how
    much it changes the logits of random images. Give a stage or a module to noise.stages, or to
    chaosgate.attach. For your own images call chaosgate.sites(model, images).

    Examples:
      chaosgate sites resnet50                    a timm model by name, with random weights
      chaosgate sites resnet50 --pretrained
      chaosgate sites runs/MY_RUN                 the network of a run

    Args:
        network: A run directory, a checkpoint file, or the name of a timm model.
        backbone: timm name of the network, if the checkpoint file does not state it.
        pretrained: Download timm's weights for a model by name.
        num_classes: Classes of the network, if not the default.
        in_chans: Channels of the images, if not three.
        image_size: Side in pixels (what the network was made for).
        log_std: Strength of the gate.
        json: Print JSON.
    """
    from dataclasses import asdict
    from json import dumps

    import torch

    from chaosgate.cli.probe_source import find_network
    from chaosgate.field.arguments import grid_text
    from chaosgate.gate import GaussianChaos
    from chaosgate.inject import sites as find_sites

    source, example = find_network(network, backbone, pretrained, num_classes, in_chans), None
    if image_size is not None:
        shape = (2, in_chans or 3, image_size, image_size)
        example = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = find_sites(source.model, example, GaussianChaos(log_std=log_std))
    if json:
        print(dumps([asdict(site) for site in found], indent=1))
        return
    rows = [("stage", "module", "grid", "channels", "layout", "survives", "logits", "positive")]
    for site in found:
        numbers = f"{site.logit_change:.2g}", f"{site.positive_share:.0%}"
        place = site.stage or "", site.module, grid_text(site.grid), str(site.channels), site.layout
        rows.append((*place, "yes" if site.survives else "no", *numbers))
    print(
        f"places for a gate in {source.name}; logits: relative change; positive: share of the map"
    )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())

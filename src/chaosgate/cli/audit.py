"""``chaosgate audit``: does the noise in a network act?"""

from jsonargparse.typing import ClosedUnitInterval, PositiveInt


def audit(
    network: str,
    *,
    drop_rate: ClosedUnitInterval | None = None,
    drop_path_rate: ClosedUnitInterval | None = None,
    attn_drop_rate: ClosedUnitInterval | None = None,
    proj_drop_rate: ClosedUnitInterval | None = None,
    drop_block_rate: ClosedUnitInterval | None = None,
    num_classes: PositiveInt | None = None,
    in_chans: PositiveInt | None = None,
    image_size: PositiveInt | None = None,
    batch_size: PositiveInt = 4,
    require: bool = False,
    json: bool = False,
) -> None:
    """List every source of random numbers in a network, and what each does.

    For each source: draws per training forward and in evaluation, requested and realized rate, the
    change of the output when only this source is redrawn, and a verdict. See docs/audit.md.

    Examples:
      chaosgate audit resnet50 --drop_rate 0.1 --drop_path_rate 0.1
      chaosgate audit runs/MY_RUN
      chaosgate audit my_module:build_model --image_size 224

    Args:
        network: The name of a timm model, a run directory, a checkpoint file, or module:function.
        drop_rate: Argument of a timm model.
        drop_path_rate: Argument of a timm model.
        attn_drop_rate: Argument of a timm model.
        proj_drop_rate: Argument of a timm model.
        drop_block_rate: Argument of a timm model.
        num_classes: Classes of the network, if not the default.
        in_chans: Channels of the images, if not three.
        image_size: Side in pixels (what the network was made for).
        batch_size: Number of random images.
        require: Exit with status 1 unless all noise acts in training and evaluation is silent.
        json: Print JSON.
    """
    import sys
    from pkgutil import resolve_name

    import timm
    import torch

    from chaosgate.cli.sources import find_network
    from chaosgate.inject.sources import audit as run_audit
    from chaosgate.inject.stages import example_input

    rates = {
        "drop_rate": drop_rate,
        "drop_path_rate": drop_path_rate,
        "attn_drop_rate": attn_drop_rate,
        "proj_drop_rate": proj_drop_rate,
        "drop_block_rate": drop_block_rate,
    }
    sizes = {"num_classes": num_classes, "in_chans": in_chans}
    rates = {name: value for name, value in rates.items() if value is not None}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    if ":" in network:
        sys.path.insert(0, ".")
        model = resolve_name(network)()
    elif rates:
        model = timm.create_model(network, **rates, **sizes)
    else:
        model = find_network(network, num_classes=num_classes, in_chans=in_chans).model
    generator = torch.Generator().manual_seed(0)
    shape = (
        (in_chans or 3, image_size, image_size) if image_size else example_input(model).shape[1:]
    )
    found = run_audit(model, torch.randn(batch_size, *shape, generator=generator))
    print(found.to_frame().to_json(orient="records", indent=1) if json else found)
    if require:
        try:
            found.require(training="acts", evaluation="silent")
        except AssertionError as error:
            raise ValueError(str(error).splitlines()[0]) from None

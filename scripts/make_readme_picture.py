"""Draw docs/gate.png: Gaussian Chaos at an early and at the last stage of a network that the quickstart trained.

python scripts/make_readme_picture.py runs/studies/quickstart/*-GaussianChaos-*/checkpoints/last.ckpt
"""

import sys

import chaosgate as cg
from chaosgate.inject.diagnostics import gate_figure
from chaosgate.train.backbones import create_backbone
from chaosgate.train.weights import network_weights, read_checkpoint


def main(checkpoint: str) -> None:
    """Load the network as it was trained, show the first validation image, save the picture."""
    content = read_checkpoint(checkpoint)
    arguments = content["hyper_parameters"]
    model = create_backbone(
        arguments["backbone"],
        num_classes=arguments["num_classes"],
        in_chans=arguments["in_chans"],
        **(arguments["backbone_args"] or {}),
    )
    model.load_state_dict(network_weights(content))
    data = cg.FashionMNIST()
    data.setup("fit")
    batch = next(iter(data.val_dataloader()))
    with cg.attach(model, cg.GaussianChaos(log_std=1.0), ["L2", "L4"]) as handle:
        figure = gate_figure(handle, data.normalise(batch.image[4:5]), images=1)
    figure.savefig("docs/gate.png", dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])

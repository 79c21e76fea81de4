"""Places that were once wrong without an error: now right, or refused."""

import pytest
import timm
import torch
import torchvision

from tests.programs.placement import verdicts

pytestmark = pytest.mark.slow

CASES = [  # network, stage, its module if it exists
    ("resnet18", "L1", "layer1"),
    ("efficientnet_b0", "L4", "blocks.6"),
    ("ghostnet_050", "L4", "blocks.9"),  # convolutions of the same grid follow the declared stage
    ("repghostnet_050", "L4", "blocks.9"),
    ("twins_svt_small", "L4", None),  # the position encodings are a residual branch
    ("xcit_nano_12_p16_224", "L4", None),  # class attention reads the last block
    ("torchvision/resnet18", "L4", "layer4"),
    ("torchvision/squeezenet1_1", "L4", None),  # its last convolution gives the class scores
    ("transformers/Hiera", "L2", None),  # its tokens are not row by row
    ("transformers/Levit", "L4", None),  # the stem has more resolutions than the rest
    ("transformers/PvtV2", "L1", None),
]


def build(name):
    torch.manual_seed(0)
    library, _, model = name.rpartition("/")
    if library == "torchvision":
        return torchvision.models.get_model(model, num_classes=10)
    if library == "transformers":
        transformers = pytest.importorskip("transformers")
        given = {"image_size": 128, "num_labels": 10}
        if model == "Hiera":
            given |= {"image_size": [128, 128], "embed_dim": 24}
        config = getattr(transformers, f"{model}Config")(**given)
        return getattr(transformers, f"{model}ForImageClassification")(config)
    return timm.create_model(model, num_classes=10)


@pytest.mark.parametrize(("name", "stage", "expected"), CASES)
def test_a_place_is_right_or_refused(name, stage, expected):
    images = torch.randn(2, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    ((_, module, _, verdict, reason),) = verdicts(build(name), images, [stage])
    assert verdict in ("right", "refused"), (module, reason)
    assert expected in (None, module), reason

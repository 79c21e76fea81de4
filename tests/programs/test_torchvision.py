"""A detector and a segmentation network of torchvision, with the gate in the backbone."""

import pytest
import torch
from torch import nn
from torchvision.models import detection, segmentation

from tests.programs.by_hand import batches, compare, descend

pytestmark = pytest.mark.slow


def detector():
    torch.manual_seed(0)
    backbone = detection.backbone_utils.resnet_fpn_backbone(
        backbone_name="resnet18", weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5
    )
    return detection.FasterRCNN(backbone, num_classes=4, min_size=96, max_size=96)


def test_a_detector_equals_one_with_a_gate_by_hand():
    def loss(model, images, labels):
        boxes = torch.tensor([[8.0, 8.0, 48.0, 56.0], [30.0, 20.0, 90.0, 80.0]])
        targets = [{"boxes": boxes, "labels": labels % 3 + 1} for _ in images]
        torch.manual_seed(0)  # the detector samples its proposals
        return sum(model(list(images), targets).values())

    def train(model):
        return descend(model, batches(2, size=2, side=96), loss, lr=1e-3)

    compare(train, detector, "backbone.body.layer4", stages="backbone.body.layer4")


def test_segmentation_equals_one_with_a_gate_by_hand():
    def build():
        torch.manual_seed(0)
        return segmentation.fcn_resnet50(
            weights=None, weights_backbone=None, num_classes=5, aux_loss=False
        )

    def loss(model, images, labels):
        torch.manual_seed(0)  # the head has dropout
        return nn.functional.cross_entropy(model(images)["out"], images[:, 0].long().clamp(0, 4))

    def train(model):
        return descend(model, batches(2, size=2), loss, lr=1e-2)

    compare(train, build, "backbone.layer4", stages="backbone.layer4")

"""When a small calibration error means failure."""

from math import isfinite


def collapsed(
    top1: float,
    confidence: float,
    reference_top1: float,
    keep: float = 0.5,
    num_classes: int | None = None,
) -> bool:
    r"""Whether a network is well calibrated only because it knows little and says so (tab. imagenetc_gamma).

    A network that gives up accuracy and confidence together has a small ECE: at :math:`\gamma = 0.35` the paper finds
    .043 on ImageNet-C, the smallest of its sweep, at a top-1 of .050 where .382 is possible. The rule: with chance
    level :math:`c = 1/K` (0 if ``num_classes`` is not given), both

    .. math:: \text{top1} \le c + \text{keep}\,(\text{reference} - c), \qquad
              \text{confidence} \le c + \text{keep}\,(\text{reference} - c).

    That is: at least half of the reference's lead is lost, and confidence fell with it. A network that failed and
    stayed confident is not flagged: its ECE is large and speaks for itself. With few classes give ``num_classes``, or
    a network at chance (.5 of 2) passes for half as good as the reference.

    Args:
        top1: accuracy of the network in question.
        confidence: its mean largest probability.
        reference_top1: accuracy of the same network without noise on the same data.
        keep: share of the reference's lead over chance below which the network counts as collapsed.
        num_classes: number of classes, for the chance level.

    >>> collapsed(top1=0.050, confidence=0.007, reference_top1=0.382)
    True
    >>> collapsed(top1=0.383, confidence=0.44, reference_top1=0.382)
    False
    """
    given = {"top1": top1, "confidence": confidence, "reference_top1": reference_top1}
    if bad := {name: value for name, value in given.items() if not (isfinite(value) and 0 <= value <= 1)}:
        raise ValueError(f"shares must lie in [0, 1]; found {bad}. A run without finite numbers needs no flag.")
    chance = 0.0 if num_classes is None else 1 / num_classes
    if reference_top1 <= chance:
        return False  # nothing to lose: the reference knows no more than chance
    limit = chance + keep * (reference_top1 - chance)
    return top1 <= limit and confidence <= limit

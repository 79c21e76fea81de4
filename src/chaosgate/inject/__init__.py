"""Gates in a network: stage names, hooks, the Lightning callback, an audit."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chaosgate.inject.attachment import Attachment, attach
from chaosgate.inject.effect import SiteEffect, SiteReport, sites
from chaosgate.inject.schedule import Adaptive, Ramp, Schedule
from chaosgate.inject.stages import resolve_stages

if TYPE_CHECKING:
    from chaosgate.inject.callback import NoiseInjection
    from chaosgate.inject.sources import Audit, audit

__all__ = [
    "Adaptive",
    "Attachment",
    "Audit",
    "NoiseInjection",
    "Ramp",
    "Schedule",
    "SiteEffect",
    "SiteReport",
    "attach",
    "audit",
    "resolve_stages",
    "sites",
]


def __getattr__(name: str) -> Any:
    if name in ("Audit", "audit"):
        return getattr(import_module("chaosgate.inject.sources"), name)
    if name == "NoiseInjection":  # the callback needs Lightning
        return getattr(import_module("chaosgate.inject.callback"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

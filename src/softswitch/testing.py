"""Tools for testing a federation: Byzantine clients with known attacks."""

from typing import TYPE_CHECKING

from softswitch.support.startup import lazy_attributes

if TYPE_CHECKING:
    from softswitch.oracles.attacks import ATTACKS as ATTACKS
    from softswitch.oracles.attacks import ByzantineOracle as ByzantineOracle
    from softswitch.oracles.attacks import with_attack as with_attack

__all__, __getattr__, __dir__ = lazy_attributes(__name__)

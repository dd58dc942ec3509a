"""Purifiers, one file per method; each is a callable from a batch of images to a `Purified` batch."""

from soap.purifiers.anti_adversary import AntiAdversary
from soap.purifiers.defense_gan import DefenseGAN
from soap.purifiers.hedge import Hedge
from soap.purifiers.pixel_defend import PixelDefend
from soap.purifiers.purifier import Purifier
from soap.purifiers.soap import SOAP, Purified

__all__ = ["SOAP", "AntiAdversary", "DefenseGAN", "Hedge", "PixelDefend", "Purified", "Purifier"]

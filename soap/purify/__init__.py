"""Purifiers: callables from a batch to a purified batch, and the module that puts one before a classifier."""

from soap.purify.anti_adversary import AntiAdversary
from soap.purify.defended import Defended
from soap.purify.defense_gan import DefenseGAN
from soap.purify.hedge import Hedge
from soap.purify.pixel_defend import PixelDefend
from soap.purify.purifies import Purifies
from soap.purify.soap import Purified, Purifier

__all__ = ["AntiAdversary", "Defended", "DefenseGAN", "Hedge", "PixelDefend", "Purified", "Purifier", "Purifies"]

"""Purifiers, one file per method; each is a callable from a batch of images to a `Purified` batch."""

from soap.purifiers.anti_adversary import AntiAdversary
from soap.purifiers.autoencoder import Reformer
from soap.purifiers.defense_gan import DefenseGAN
from soap.purifiers.diffusion import DiffPure
from soap.purifiers.energy import EnergyDescent
from soap.purifiers.hedge import Hedge
from soap.purifiers.image_filters import BitDepth, JpegCompression, MedianFilter
from soap.purifiers.pixel_defend import PixelDefend
from soap.purifiers.purifier import Purified, Purifier
from soap.purifiers.smoothing import Certified, Smoothing
from soap.purifiers.soap import SOAP
from soap.purifiers.views import ViewAverage

__all__ = [
    "SOAP",
    "AntiAdversary",
    "BitDepth",
    "Certified",
    "DefenseGAN",
    "DiffPure",
    "EnergyDescent",
    "Hedge",
    "JpegCompression",
    "MedianFilter",
    "PixelDefend",
    "Purified",
    "Purifier",
    "Reformer",
    "Smoothing",
    "ViewAverage",
]

"""Runs several commands of soap in one group of processes: `commands.py LISTS`, their arguments as JSON."""

import json
import sys

import torch

from soap._runtime import distributed
from soap.cli import main

if __name__ == "__main__":
    with distributed.process_group(torch.device("cpu")):
        codes = [main(arguments) for arguments in json.loads(sys.argv[1])]
    sys.exit(max(codes))

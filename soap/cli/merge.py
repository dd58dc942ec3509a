"""`soap merge`: the shards of a suite run become one run."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from soap._files import atomic
from soap.cli.console import Console, command
from soap.cli.options import option
from soap.evaluation.run_folder import RunFolder
from soap.evaluation.shards import merge_runs
from soap.evaluation.suite import COMMAND_FACT


@command("merge", example="soap merge runs/lc/0 runs/lc/1 --out runs/lc")
def merge_command(
    console: Console,
    *,
    shards: Annotated[
        list[Path],
        typer.Argument(
            metavar="SHARDS...", help="The folders of all shards of `soap evaluate --suite --shard`.", readable=False
        ),
    ],
    out: Annotated[Path, option("RUN", "Folder of the merged run.")],
) -> None:
    """Merge the shards of a suite run into one run, and print the command that finishes it.

    The shards must be all parts of one run: the same weights, data, threat, attacks, batch size and seed, each shard
    once, finished and unchanged. The merged run has the attacked images of a run in one process. Its checks and its
    verdict need all images: `soap evaluate` without --shard, with --out RUN, makes them.
    """
    atomic.check_writable(out)
    with console.progress() as show:
        merged = merge_runs(shards, out, watch=show)
    finish = whole_command(RunFolder(shards[0]), out)
    images = merged.plan()["data"]["n"]
    content = {"run": out, "shards": len(shards), "images": images, "finish": finish}
    made = f"Merged {len(shards)} shards, {images:,} images, in {out}. Make its checks and its verdict with:"
    console.result(content, f"{made}\n{finish or 'soap.evaluate(...) with the arguments of the shards, without shard'}")


def whole_command(shard: RunFolder, out: Path) -> str | None:
    """The command of a shard, changed to finish the merged run in `out`; None for a shard that Python made."""
    stored = (shard.read_fact(COMMAND_FACT) or {}).get("command")
    if not isinstance(stored, str):
        return None
    parts = shlex.split(stored)
    for name in ("--shard", "--out"):
        if name in parts:
            place = parts.index(name)
            del parts[place : place + 2]
    return shlex.join([*parts, "--out", str(out)])

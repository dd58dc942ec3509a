"""Independent shards of a suite run, for job arrays, and their merge into the run of one process.

A shard attacks a contiguous part of the batches in its own folder and communicates with no other process. An attempt on
a batch depends on the seed, on the number of the batch in the whole run and on earlier attempts on that batch, so a
merged run has the images and rows of one process. The checks need the whole run: the command that finishes the merged
run measures them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soap._files import atomic
from soap.errors import FileError, InputError
from soap.evaluation.run_folder import CONTINUED, MAKERS, RunFolder, batch_fingerprint, open_run
from soap.evaluation.transfer import Watch

_OWN_ENTRIES = ("shard", "provenance")
"""Entries of a plan that may differ among the shards of one run."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackedShard:
    """A finished shard: part `index` of `count`, counted from 0. images: the numbers of its images in the run."""

    folder: RunFolder
    index: int
    count: int
    images: range


def merge_runs(
    folders: Sequence[str | Path], out: str | Path, *, watch: Watch = lambda what, done, total: None
) -> RunFolder:
    """Merge all shards of a run into the folder `out`; `soap.evaluate` with this `out` then makes checks and report.

    Raises InputError for shards of different runs and for missing or repeated shards, FileError for a shard that is not
    finished or was changed afterwards. The folders of the shards are not changed.
    """
    if not folders:
        raise InputError("no shard given, expected the folders of all shards of a run.")
    shards = sorted((shard_in(open_run(Path(place), part=True)) for place in folders), key=lambda one: one.index)
    plan = _common_plan(shards)
    _check_complete(shards)
    seal = dict(part for shard in shards for part in _checked_seal(shard, watch))
    merged = RunFolder(Path(out))
    merged.begin(plan)
    for shard in shards:
        for name, attempt, number in shard.folder.batch_names():
            there = merged.read_batch(attempt, number)
            if there is None:
                atomic.copy(shard.folder.path / f"{name}.npz", merged.path / f"{name}.npz")
            elif batch_fingerprint(there) != seal[name]:
                raise InputError(f"{out} has another {name} than {shard.folder.path}; give another folder.")
    makers = _other_makers([*(shard.folder for shard in shards), merged])
    if makers:
        merged.write_fact(CONTINUED, {"by": makers})
    return merged


def shard_in(folder: RunFolder) -> AttackedShard:
    """The shard in a folder; InputError for a whole run."""
    plan, numbers = folder.plan(), folder.batch_numbers()
    if "shard" not in plan:
        raise InputError(f"{folder.path} is a whole run, expected a shard of `soap evaluate --suite ... --shard i/n`.")
    images = range(numbers.start * plan["batch_size"], min(numbers.stop * plan["batch_size"], plan["data"]["n"]))
    return AttackedShard(folder=folder, index=plan["shard"]["index"], count=plan["shard"]["count"], images=images)


def _common_plan(shards: Sequence[AttackedShard]) -> dict[str, Any]:
    """The plan of the whole run; InputError where two shards have different plans."""
    first = shards[0].folder
    for one in shards[1:]:
        mine, other = first.plan(), one.folder.plan()
        for key in dict.fromkeys(("weights_sha256", "data", "threat", "seed", "suite", *mine, *other)):
            if key not in _OWN_ENTRIES and mine.get(key) != other.get(key):
                raise InputError(
                    f"{first.path} and {one.folder.path} are shards of different runs: {key} is "
                    f"{_short(mine.get(key))} and {_short(other.get(key))}; give shards made with the same command."
                )
        if one.count != shards[0].count:
            raise InputError(
                f"{first.path} is one of {shards[0].count} shards and {one.folder.path} one of {one.count}; give "
                "shards of the same division."
            )
    return {key: value for key, value in first.plan().items() if key not in ("shard", "schema")}


def _short(value: object) -> str:
    return f"{value!r:.80}"


def _check_complete(shards: Sequence[AttackedShard]) -> None:
    """Raise unless every shard is there once."""
    places: dict[int, Path] = {}
    for one in shards:
        if one.index in places:
            both = f"{places[one.index]} and {one.folder.path}"
            raise InputError(f"{both} are both shard {one.index} of {one.count}; give one of them.")
        places[one.index] = one.folder.path
    count = shards[0].count
    missing = [str(index) for index in range(count) if index not in places]
    if missing:
        raise InputError(f"of {count} shards, {', '.join(missing)} is missing; give the folders of all shards.")


def _checked_seal(shard: AttackedShard, watch: Watch) -> Iterator[tuple[str, str]]:
    """(name, fingerprint) of each batch of a shard; FileError unless it is finished and unchanged since then."""
    folder = shard.folder
    seal: Mapping[str, str] | None = folder.read_fingerprints()
    if seal is None:
        raise FileError(f"{folder.path}: shard {shard.index} is not finished; repeat its command.")
    names = [*folder.batch_names()]
    for done, (name, attempt, number) in enumerate(names, 1):
        batch = folder.read_batch(attempt, number)
        if batch is None or seal.get(name) != batch_fingerprint(batch):
            problem = "is missing" if batch is None else "was changed after the shard was finished"
            raise FileError(f"{folder.path}: {name} {problem}; remove the folder and run shard {shard.index} again.")
        yield name, seal[name]
        watch(f"checking shard {shard.index}", done, len(names))


def _other_makers(folders: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Versions and devices that made the folders, other than those of the first, which the merged plan names."""
    found = [{name: folder.plan()["provenance"][name] for name in MAKERS} for folder in folders]
    for folder in folders:
        found += (folder.read_fact(CONTINUED) or {"by": []})["by"]
    return [one for place, one in enumerate(found) if one not in found[:place]][1:]

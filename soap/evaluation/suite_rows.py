"""Result rows of a suite run."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from soap.evaluation.summary import CLEAN, WORST, Summary
from soap.results import Row, defence_from_json, provenance_from_json
from soap.specs import BARE, AttackSpec, AttackStep

WORST_STEP = "Worst"
"""Name of the attack step of the worst case; its settings name the protocols and the threat."""


def result_rows(summary: Summary) -> list[Row]:
    """Result rows of clean images, every protocol and the worst case: defended, and bare on the same points."""
    plan, steps = summary.plan, dict[str, list[AttackStep]]()
    for one in plan["attempts"]:
        steps.setdefault(one["protocol"], []).append(AttackStep(**one["attack"]))
    whole = {"protocols": list(steps), **plan["threat"], "attempts": attempts_digest(steps)}
    steps |= {CLEAN: [AttackStep(name="Clean")], WORST: [AttackStep(name=WORST_STEP, settings=whole)]}
    made, defence = [], defence_from_json(plan["target"]["defence"])
    for line in (summary.clean, *summary.protocols, summary.worst):
        after = {f"after {name}": share for name, share in line.after.items()}
        if line.drawn is not None and line.worst_of_draws is not None and line.majority is not None:
            k = line.drawn.shape[1]
            after |= {
                "mean over draws": line.accuracy,
                f"worst of {k} draws": line.worst_of_draws,
                f"majority of {k} draws": line.majority,
            }
        row = Row(
            protocol=line.protocol if line.protocol != CLEAN else "transfer",
            model=plan["target"]["name"],
            data=plan["data"]["name"],
            attack=AttackSpec(name=line.protocol, steps=tuple(steps[line.protocol]), suite=plan["suite"]),
            defence=defence,
            n=line.n,
            correct=line.correct,
            seconds=round(line.seconds, 3),
            measures=after,
            provenance=provenance_from_json(plan["provenance"]),
        )
        made.append(row)
        if line.bare is not None and plan["purifies"]:
            aimed = replace(row.attack, against=defence)
            made.append(replace(row, attack=aimed, defence=BARE, correct=int(line.bare.sum()), measures={}))
    if summary.classifier_worst is not None and plan["purifies"]:  # the classifier under its own strongest attack
        made.append(replace(row, defence=BARE, correct=int(summary.classifier_worst.sum()), measures={}))
    return made


def attempts_digest(steps: Mapping[str, Sequence[AttackStep]]) -> str:
    """A short hash of all attempts of a run, by protocol; it identifies the worst case."""
    content = {name: [asdict(step) for step in each] for name, each in steps.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

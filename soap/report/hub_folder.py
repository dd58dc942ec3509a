"""The files of a model on the Hugging Face Hub: weights, config.json, model card and evaluation results."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from soap import __version__
from soap._files import atomic
from soap.errors import InputError
from soap.evaluation import SuiteReport
from soap.evaluation.summary import WORST
from soap.evaluation.verdict import headline
from soap.hub import CONFIG, CONFIG_FORMAT, SCHEME, WEIGHTS, HubReference, hub_client, parse_reference
from soap.report.model_cards import HEADLINE_ATTACKS, ModelCard, read_model_card
from soap.report.row_text import UPPER_BOUND, models_table, training_text
from soap.results import Row

RESULTS = ".eval_results/soap.yaml"
HUB_DATA = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}
"""Data sets by their names on the hub. Results on other data stay in the model card."""


def push_model(model: str, repo: str, report: SuiteReport | None = None, *, private: bool = False) -> str:
    """Upload the files of `write_hub_folder` to `repo`, owner/name, as one commit; return `hf://owner/name@commit`."""
    wanted = parse_reference(SCHEME + repo)
    with tempfile.TemporaryDirectory() as folder:
        files = write_hub_folder(model, Path(folder), repo, report)
        return str(HubReference(repo, _commit_files(files, wanted, private)))


def _commit_files(files: Mapping[str, Path], wanted: HubReference, private: bool) -> str:
    """Upload the files as one commit and return its hash."""
    with hub_client(wanted) as api:
        from huggingface_hub import CommitOperationAdd

        added = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in files.items()]
        api.create_repo(wanted.repo, private=private or None, exist_ok=True)
        message = f"Upload weights and results by soap-defense {__version__}"
        return str(api.create_commit(wanted.repo, operations=added, commit_message=message).oid)


def write_hub_folder(model: str, folder: Path, repo: str, report: SuiteReport | None = None) -> dict[str, Path]:
    """Write the files of a model into a folder and return them by their paths in the repository.

    report: of a suite run with exactly these weights, whose worst case the model card then states.
    """
    card = read_model_card(model)
    if report is not None and report.worst_row.provenance.weights_sha256 != card.weights_sha256:
        raise InputError(
            f"{report.folder.path} measured other weights than those of {model}, or a purifier with a network of its "
            "own; give a run of this model, or omit it."
        )
    files = {name: folder / name for name in (WEIGHTS, CONFIG, "README.md")}
    atomic.copy(card.path, files[WEIGHTS])
    config = {
        "format": CONFIG_FORMAT,
        "library": f"soap-defense {__version__}",
        "architecture": card.recipe.architecture,
        "task": card.recipe.task,
        "data": card.recipe.data,
        "sha256": atomic.sha256(card.path),
        "weights_sha256": card.weights_sha256,
        "recipe": card.recipe.text,
    }
    atomic.write_text(files[CONFIG], json.dumps(config, indent=1) + "\n")
    rows = [row for attack in HEADLINE_ATTACKS if (row := card.headline(attack)) is not None]
    atomic.write_text(files["README.md"], model_card_text(card, repo, rows, report))
    if entries := _result_entries(rows, report):
        files[RESULTS] = folder / RESULTS
        atomic.write_text(files[RESULTS], json.dumps(entries, indent=1) + "\n")  # JSON is YAML, too
    return files


def model_card_text(card: ModelCard, repo: str, rows: list[Row], report: SuiteReport | None) -> str:
    """The README.md of a model: metadata, use, results and recipe."""
    front: dict[str, Any] = {"library_name": "soap-defense", "pipeline_tag": "image-classification"}
    front["tags"] = ["adversarial-robustness", "adversarial-purification"]
    if card.recipe.data in HUB_DATA:
        front["datasets"] = [HUB_DATA[card.recipe.data]]
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in front.items())
    adaptive = f"Not measured yet: `soap evaluate {SCHEME}{repo} --suite full`."
    if report is not None:
        threat = report.folder.plan()["threat"]
        line = headline(report.summary, report.verdict)
        adaptive = f"{threat['norm']}, eps {threat['eps']:g}: **{line}**"
    transfer = f"{models_table(rows)}\n\n{UPPER_BOUND}" if rows else "No results are stored with these weights."
    trained = training_text(rows[0].training) if rows else ""
    return f"""---
{lines}---
# {card.name}

{card.recipe.architecture} for {card.recipe.data}, auxiliary task {card.recipe.task or "none"}, \
{card.parameters:,} parameters{f"; trained {trained}" if trained else ""}. For the library soap-defense {__version__}.

```python
import soap
model = soap.load("{SCHEME}{repo}")  # add @COMMIT to get the same weights every time
defence = soap.Defence(model{", soap.SOAP(model)" if card.recipe.task else ""})
```

## Robustness against an attacker who knows the defence

{adaptive}

Every accuracy under attack is an upper bound: a better attack can only lower it.

## Accuracy by the transfer protocol, %

{transfer}

## Recipe

```toml
{card.recipe.text.rstrip()}
```

sha256 of the weights: `{card.weights_sha256}`
"""


def _result_entries(rows: list[Row], report: SuiteReport | None) -> list[dict[str, Any]]:
    """The entries of .eval_results: accuracies in per cent, none that a failed check hides."""
    found = [(f"{row.attack.name}-transfer", row, row.accuracy, row.interval, "the attack does not know the purifier")
             for row in rows]  # fmt: skip
    if report is not None and report.verdict.shows(WORST):
        found.append(("worst-case", report.worst_row, report.worst, report.interval, str(report.verdict)))
    if not (found := [one for one in found if one[1].data in HUB_DATA]):
        return []
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = []
    for task, row, accuracy, (low, high), note in found:
        settings = json.dumps([asdict(step) for step in row.attack.steps])
        notes = f"95 % interval [{100 * low:.2f}, {100 * high:.2f}], n = {row.n}; {note}; attack {settings}"
        entries.append(
            EvalResultEntry(
                dataset_id=HUB_DATA[row.data],
                task_id=task,
                value=round(100 * accuracy, 2),
                date=row.provenance.date,
                notes=notes,
            )
        )
    return eval_result_entries_to_yaml(entries)

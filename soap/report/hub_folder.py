"""The files of a model on the Hugging Face Hub: weights, config.json, model card and evaluation results."""

import json
import tempfile
from pathlib import Path
from typing import Any

from soap import __version__
from soap._files import atomic, checksums
from soap.errors import InputError
from soap.evaluation import SuiteReport, headline
from soap.evaluation.summary import WORST
from soap.hub import CONFIG, CONFIG_FORMAT, SCHEME, WEIGHTS, HubReference, hub_client, parse_reference
from soap.report.model_cards import HEADLINE_ATTACKS, read_model_card
from soap.report.row_text import UPPER_BOUND, models_table, step_text
from soap.results import Row

RESULTS = ".eval_results/soap.yaml"
HUB_DATA = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}
"""Data sets by their names on the hub. Results on other data are in the model card alone."""

README = """---
library_name: soap-defense
pipeline_tag: image-classification
tags: [adversarial-robustness, adversarial-purification]
{datasets}---
# {name}

{architecture} for {data}, auxiliary task {task}, for the library soap-defense {version}.

```python
import soap
model = soap.load("{reference}")  # add @COMMIT to load the same weights every time
```

## Accuracy against an attacker who knows the defence

{adaptive}

## Accuracy by the transfer protocol, %

{transfer}

## Recipe

```toml
{recipe}
```
"""


def push_model(model: str, repo: str, report: SuiteReport | None = None, *, private: bool = False) -> str:
    """Upload the files of `write_hub_folder` to `repo`, owner/name, as one commit; return `hf://owner/name@commit`."""
    wanted = parse_reference(SCHEME + repo)
    with tempfile.TemporaryDirectory() as folder:
        files = write_hub_folder(model, Path(folder), repo, report)
        with hub_client(wanted) as api:
            from huggingface_hub import CommitOperationAdd

            api.create_repo(repo, private=private or None, exist_ok=True)
            added = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in files.items()]
            message = f"Upload weights and results by soap-defense {__version__}"
            return str(HubReference(repo, api.create_commit(repo, operations=added, commit_message=message).oid))


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
    recipe, sha256 = card.trained.recipe, atomic.sha256(card.path)
    if recipe is None:
        raise InputError(f"{model} has no recipe; expected a model trained by `soap train`, which others can load.")
    shown = {"architecture": recipe.architecture, "task": recipe.task, "data": recipe.data}
    config = {"format": CONFIG_FORMAT, "library": __version__, **shown, "sha256": sha256, "recipe": recipe.text}
    rows = [row for attack in HEADLINE_ATTACKS if (row := card.headline(attack)) is not None]
    readme = README.format(
        **shown,
        name=card.name,
        version=__version__,
        reference=SCHEME + repo,
        datasets=f"datasets: [{HUB_DATA[recipe.data]}]\n" if recipe.data in HUB_DATA else "",
        adaptive=f"Not measured: `soap evaluate {SCHEME}{repo} --suite full`." if report is None else _adaptive(report),
        transfer=f"{models_table(rows)}\n\n{UPPER_BOUND}" if rows else "Not measured with these weights.",
        recipe=recipe.text.rstrip(),
    )
    texts = {CONFIG: checksums.dumps(config, "\n", indent=1), "README.md": readme}
    if entries := _result_entries(rows, report):
        texts[RESULTS] = json.dumps(entries, indent=1) + "\n"  # JSON is YAML, too
    atomic.copy(card.path, folder / WEIGHTS)
    for name, text in texts.items():
        atomic.write_text(folder / name, text)
    return {name: folder / name for name in (WEIGHTS, *texts)}


def _adaptive(report: SuiteReport) -> str:
    threat, line = report.folder.plan()["threat"], headline(report.summary, report.verdict)
    return f"{threat['norm']}, eps {threat['eps']:g}: **{line}**. An upper bound: a better attack can only lower it."


def _result_entries(rows: list[Row], report: SuiteReport | None) -> list[dict[str, Any]]:
    """The entries of .eval_results: accuracies in per cent, none that a failed check hides."""
    found = [(f"{row.attack.name}-transfer", row, row.accuracy, row.interval, "transfer protocol") for row in rows]
    if report is not None and report.verdict.shows(WORST):
        found.append(("worst-case", report.worst_row, report.worst, report.interval, str(report.verdict)))
    return [
        {
            "dataset": {"id": HUB_DATA[row.data], "task_id": task},
            "value": round(100 * accuracy, 2),
            "date": row.provenance.date,
            "notes": f"95 % interval [{100 * low:.2f}, {100 * high:.2f}], n = {row.n}; {note}; "
            + ", ".join(map(step_text, row.attack.steps)),
        }
        for task, row, accuracy, (low, high), note in found
        if row.data in HUB_DATA
    ]

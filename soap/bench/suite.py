"""The full suite against its headline mode, on the same images: seconds, and whether the worst cases agree."""

import time
from tempfile import TemporaryDirectory
from typing import Any

from soap.bench.inputs import BenchSetup
from soap.bench.results import OURS, ROW_SCHEMA, BenchRow, path_metrics, provenance
from soap.defence import Defence
from soap.evaluation.protocols import DEFAULT_EFFORT
from soap.evaluation.suite import SuiteReport, evaluate
from soap.purifiers import SOAP
from soap.recipes.trained_model import open_model

FULL = "full"


def bench_suite(
    setup: BenchSetup, *, model: str, data: str | None, limit: int, steps: int | None, queries: int | None
) -> BenchRow:
    """Run the suite on a model with its purifier, if it has one, in both modes, the headline mode first.

    data: None for those of the model. Both runs include their checks. The row has no floor.
    """
    trained = open_model(model, device=setup.device)
    images = trained.images(data, "test", root=setup.root).take(limit)
    network, eps = trained.model, trained.radius(images.name)
    defence = Defence(network, SOAP(network, "min-aux") if network.purifiable else None)
    reports: dict[str, SuiteReport] = {}
    seconds: dict[str, float] = {}
    for name in (OURS, FULL):
        with TemporaryDirectory() as out:
            began = time.monotonic()
            settings: dict[str, Any] = {"eps": eps, "steps": steps, "queries": queries, "seed": setup.seed}
            report = evaluate(
                defence, images, suite=FULL, headline=name == OURS, out=out, watch=setup.watch, **settings
            )
            seconds[name] = time.monotonic() - began
            if isinstance(report, SuiteReport):
                reports[name] = report
    paths = path_metrics({name: [taken] for name, taken in seconds.items()}, len(images), {}, {})
    for name, report in reports.items():
        paths[name] |= {"attack_seconds": report.summary.worst.seconds, "worst": report.summary.worst.accuracy}
    ours, full = (reports[name].summary.worst.defended for name in (OURS, FULL))
    effort = DEFAULT_EFFORT.changed(steps=steps, queries=queries)
    return {
        "schema": ROW_SCHEMA,
        "what": "suite",
        "model": network.name,
        "weights": "trained",
        "inputs": f"{images.name}/{images.split}",
        "settings": f"eps={eps:g}, linf, restarts={effort.restarts}",
        "case": {"images": len(images), "steps": effort.steps, "queries": effort.queries},
        "paths": paths,
        "agreement": {FULL: {"labels": float((ours == full).mean())}},
        "notes": [],
        "provenance": provenance(setup.device),
    }

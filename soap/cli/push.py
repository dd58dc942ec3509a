"""`soap push`: upload a model with its results to the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

import typer

from soap import hub
from soap.cli.console import Console, command
from soap.cli.options import DataOptions, ModelName, option
from soap.recipes.run_request import report_of
from soap.report.hub_folder import push_model, write_hub_folder


@command("push", example="soap push runs/mine/last.safetensors me/mine --run runs/mine-full")
def push_command(
    console: Console,
    *,
    model: ModelName,
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The model's name on the hub.")],
    run: Annotated[
        Path | None, option("RUN", "Run of `soap evaluate --suite` whose verdict the model card states.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new model private.")] = False,
    out: Annotated[Path | None, option("DIR", "Write the files to this folder and upload nothing.")] = None,
    images: DataOptions,
) -> None:
    """Upload a model to the Hugging Face Hub: safetensors weights, config.json, model card and evaluation results.

    Needs the extra `hub` and a login (`hf auth login` or $HF_TOKEN). soap.load("hf://OWNER/NAME") loads the model;
    the printed reference names its commit. --data and --data-root are for the images of --run.
    """
    hub.parse_reference(hub.SCHEME + repo)
    report = None if run is None else report_of(run, data=images.data, root=images.data_root)[0]
    if out is not None:
        files = write_hub_folder(model, out, repo, report)
        console.result({"folder": out, "files": sorted(files)}, f"Wrote {', '.join(sorted(files))} to {out}.")
        return
    reference = push_model(model, repo, report, private=private)
    console.result({"model": reference}, f"Uploaded: soap.load({reference!r})")

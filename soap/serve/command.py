"""`soap serve`: the HTTP service."""

import importlib.util
from typing import Annotated

import typer

from soap import zoo
from soap.cli.shell import Shell, command
from soap.errors import InputError

NEEDED = ("fastapi", "uvicorn", "prometheus_client")


def serve(
    shell: Shell,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="A bundled model, or the path of a .safetensors file; again for more. "
            "[dim]\\[default: all bundled models][/dim]",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="0: any that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="SOAP_TOKEN",
            metavar="TEXT",
            help="What clients must send; needed to listen anywhere but on loopback. Others on this machine can see "
            "the command line: better set $SOAP_TOKEN.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images of many clients handled at once at most.")] = 32,
    queue: Annotated[int, typer.Option("--queue", min=1, metavar="N", help="Requests that wait for a model.")] = 64,
    gather: Annotated[
        float, typer.Option("--gather", min=0, metavar="MS", help="How long a request waits for others to join it.")
    ] = 4.0,
) -> None:
    """Serve predictions, attacks and purification over HTTP, and a page to try them.

    POST a PNG or JPEG to /v1/predict, /v1/attack or /v1/purify; /docs describes all routes. Nothing that is sent is
    kept. Stops on Ctrl-C or SIGTERM, once every accepted request is answered; -v logs requests as JSON lines.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} is not installed; run `pip install 'soap-defense[serve]'`.")
    from soap.serve import Limits, running
    from soap.serve.keeper import Keeper, Plan

    names = model or zoo.names()
    plan = Plan(
        models=tuple(names),
        token=token,
        limits=Limits(batch=batch, queue=queue, gather=gather / 1000),
        device=shell.device,
        host=host,
        log_requests=shell.verbose > 0,
    )
    plan.check()
    bound = running.bind(host, port)
    url = running.url(bound)

    def ready() -> None:
        shell.result({"url": url, "models": names}, f"Serving {', '.join(names)} at {url}")
        shell.say("Stop it with Ctrl-C.")

    Keeper(plan, bound).run(ready)


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "serve", example="soap serve --model mnist-cnn-dr --port 8000", without=("seed",))(serve)

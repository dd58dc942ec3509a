"""`soap serve`: the HTTP service."""

import importlib.util
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from soap import zoo
from soap.cli.console import Console, command
from soap.cli.options import ModuleName, option
from soap.errors import InputError, unknown

REQUIRED_PACKAGES = ("fastapi", "granian", "prometheus_client")


def read_config(context: Any, path: Path | None) -> Path | None:
    """Take defaults of the options from a TOML file, whose keys are their names."""
    if path is None:
        return None
    try:
        given = {key.replace("-", "_"): value for key, value in tomllib.loads(path.read_text("utf-8")).items()}
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path} is not a readable TOML file ({error}).") from None
    options = {one.name: one for one in context.command.params if one.name not in ("config", "help")}
    for name, value in given.items():
        if name not in options:
            raise typer.BadParameter(f"{path}: {unknown('option', name, options)}")
        if options[name].multiple and isinstance(value, str):
            given[name] = [value]
    context.default_map = given
    return path


@command(
    "serve",
    example="soap serve --model mnist-cnn-dr --port 8000",
    without=("seed",),
    environment_prefix="SOAP_SERVE",
)
def serve(
    console: Console,
    config: Annotated[
        Path | None,
        option(
            "FILE",
            "TOML file with options, e.g. port = 8000. Environment variables and the command line override it.",
            is_eager=True,
            callback=read_config,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        option(
            "NAME",
            "A bundled model, or the path of a .safetensors file. Repeat it for more models.",
            default="all bundled models",
        ),
    ] = None,
    module: ModuleName = None,
    host: Annotated[str, option("ADDRESS", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("N", "0: a free port.", min=0, max=65535)] = 8000,
    token: Annotated[
        str | None,
        option(
            "TEXT",
            "Token that clients must send. Required unless the address is loopback. Other users of this machine can "
            "read the command line, so prefer $SOAP_TOKEN.",
            envvar="SOAP_TOKEN",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        option("NAME", "Host name that requests may have besides this machine's; repeat it for more."),
    ] = None,
    batch_size: Annotated[int, option("N", "Images in one batch, at most.", min=1)] = 16,
    queue: Annotated[int, option("N", "Waiting requests per model.", min=1)] = 64,
    gather: Annotated[float, option("MS", "Time that a request waits for others to join it.", min=0)] = 4.0,
    tls_certificate: Annotated[Path | None, option("FILE", "PEM file, for HTTPS.", exists=True)] = None,
    tls_key: Annotated[Path | None, option("FILE", "PEM file (PKCS#8), for HTTPS.", exists=True)] = None,
    max_memory: Annotated[
        int | None, option("MIB", "Replace the worker, or its model process, when it uses more.", min=1)
    ] = None,
) -> None:
    """Serve predictions, attacks and purification over HTTP, and a web page to try them.

    POST a PNG or JPEG to /v1/predict, /v1/attack or /v1/purify; /docs describes all routes. The service stores nothing
    that clients send. It stops on Ctrl-C or SIGTERM after the requests in progress; -v logs requests as JSON lines.
    Every option can be set by an environment variable: --batch-size by SOAP_SERVE_BATCH_SIZE.
    """
    missing = [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} is not installed; run `pip install '.[serve]'` in a clone of soap.")
    if (tls_certificate is None) != (tls_key is None):
        raise InputError("only one of --tls-certificate and --tls-key is given; HTTPS needs both.")
    from soap.serve import Limits, server

    names = model or zoo.names()
    address, port = server.listen_address(host, port)
    settings = server.ServerConfig(
        models=tuple(names),
        module=module,
        address=address,
        port=port,
        token=token,
        allowed_hosts=tuple(allowed_host or ()),
        limits=Limits(batch_size=batch_size, queue=queue, gather_s=gather / 1000),
        device=console.device,
        log_requests=console.verbose > 0,
        tls=(tls_certificate, tls_key) if tls_certificate and tls_key else None,
        max_memory_mib=max_memory,
    )

    def announce() -> None:
        console.result({"url": settings.url, "models": names}, f"Serving {', '.join(names)} at {settings.url}")
        console.info("Stop it with Ctrl-C.")

    server.run_server(settings, announce)

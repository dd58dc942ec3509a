"""The command `soap serve`: wrong options, and what it prints at the start."""

import importlib.util
import json
import re
import socket
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "give a token"),
        (["--host", "0.0.0.0", "--token", "short"], "at least 16"),
        (["--model", "no-such-model"], "unknown model"),
        (["--port", "99999"], "--port"),
        (["--batch-size", "0"], "--batch-size"),
        (["--queue", "0"], "--queue"),
        (["--gather", "-1"], "--gather"),
        (["--tls-key", __file__], "--tls-certificate"),
        (["--host", "203.0.113.7", "--token", "t" * 20], "cannot listen"),
        (["--host", "no such host", "--token", "t" * 20], "not an address of this machine"),
    ],
)
def test_wrong_options_are_one_line(run, arguments, words):
    pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
    if "--model" not in arguments:
        arguments = [*arguments, "--model", "mnist-fcn-dr"]
    done = run("serve", *arguments)
    assert done.code == 2
    assert done.out == ""
    assert words in done.err
    assert len(done.err.splitlines()) == 1


def test_port_in_use_is_named(run):
    pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--model", "mnist-fcn-dr", "--port", port)
    assert done.code == 2
    assert f"port {port}" in done.err


def test_missing_package_is_named(run, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "granian" else found(name))
    done = run("serve")
    assert done.code == 2
    assert "granian" in done.err
    assert "pip install '.[serve]'" in done.err


def test_prints_the_url_and_takes_the_token_from_the_environment(run, monkeypatch):
    pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
    started = {}

    def note(config, on_ready):
        started["config"] = config
        on_ready()

    monkeypatch.setattr("soap.serve.server.run_server", note)
    monkeypatch.setenv("SOAP_TOKEN", "t" * 20)
    done = run("serve", "--model", "mnist-fcn-dr", "--port", 0, "--host", "0.0.0.0", "--batch-size", 5, "--queue", 6,
               "--gather", 7, "--max-memory", 2000, "--json", "-v")  # fmt: skip
    assert done.code == 0
    assert done.json["url"].startswith("http://0.0.0.0:")
    assert done.json["models"] == ["mnist-fcn-dr"]
    config = started["config"]
    assert (config.limits.batch_size, config.limits.queue, config.limits.gather_s) == (5, 6, 0.007)
    assert config.log_requests is True
    assert config.max_memory_mib == 2000
    assert config.token == "t" * 20
    assert "tttt" not in done.out + done.err + repr(config)
    assert json.loads(done.out)["command"] == "serve"


def start(run, monkeypatch, *arguments):
    """The settings that `soap serve` starts its server with, or its outcome if it does not start."""
    started = []
    monkeypatch.setattr("soap.serve.server.run_server", lambda settings, on_ready: started.append(settings))
    done = run("serve", *arguments)
    return started[0] if started else done


def test_environment_overrides_the_file_and_the_command_line_both(run, monkeypatch, tmp_path):
    pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
    config = tmp_path / "serve.toml"
    config.write_text(
        'model = ["mnist-fcn-dr", "mnist-fcn-no-def"]\nport = 0\nbatch-size = 3\nqueue = 4\ngather = 5\nverbose = 1\n'
        f'token = "{"f" * 20}"\nallowed-host = ["soap.example.org"]\nmax-memory = 3000\n'
    )
    monkeypatch.setenv("SOAP_SERVE_CONFIG", str(config))
    monkeypatch.setenv("SOAP_SERVE_QUEUE", "40")
    monkeypatch.setenv("SOAP_SERVE_GATHER", "50")
    settings = start(run, monkeypatch, "--gather", 500)
    assert (settings.limits.batch_size, settings.limits.queue, settings.limits.gather_s) == (3, 40, 0.5)
    assert settings.models == ("mnist-fcn-dr", "mnist-fcn-no-def")
    assert settings.allowed_hosts == ("soap.example.org",)
    assert (settings.token, settings.max_memory_mib, settings.log_requests) == ("f" * 20, 3000, True)
    config.write_text('model = "mnist-fcn-dr"\nport = 0')
    assert start(run, monkeypatch).models == ("mnist-fcn-dr",)
    monkeypatch.setenv("SOAP_SERVE_MODEL", "mnist-fcn-no-def mnist-fcn-dr")
    monkeypatch.setenv("SOAP_TOKEN", "e" * 20)
    settings = start(run, monkeypatch)
    assert (settings.models, settings.token) == (("mnist-fcn-no-def", "mnist-fcn-dr"), "e" * 20)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", "unknown option 'prot'; did you mean port"),
        ("port = 'x'", "--port"),
        ("port = ", "not a readable TOML file"),
        ("queue = 0", "--queue"),
        ("gather = [1]", "--gather"),
    ],
)
def test_wrong_file_is_one_line(run, monkeypatch, tmp_path, text, words):
    pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
    (tmp_path / "serve.toml").write_text(text)
    done = start(run, monkeypatch, "--config", "serve.toml")
    assert done.code == 2
    assert words in done.err
    assert len(done.err.splitlines()) == 1


def test_deployment_files_have_options_that_exist(run, monkeypatch):
    pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
    yaml = pytest.importorskip("yaml")
    deploy = Path(__file__).parents[2] / "deploy"
    given = dict(re.findall(r"(SOAP_\w+)=(\S+)", (deploy / "Dockerfile").read_text()))
    given |= yaml.safe_load((deploy / "compose.yaml").read_text())["services"]["soap"]["environment"]
    help_text = run("serve", "--help").out
    for name, value in given.items():
        assert name in help_text
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SOAP_SERVE_PORT", "0")
    (arguments,) = re.findall(r"^ExecStart=\S+ serve (.+)$", (deploy / "soap.service").read_text(), re.MULTILINE)
    assert arguments == "--config /etc/soap/serve.toml"
    settings = start(run, monkeypatch, "--config", deploy / "serve.toml")
    assert (settings.address, settings.allowed_hosts) == ("0.0.0.0", ("soap.example.org",))
    (job,) = yaml.safe_load((deploy / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"soap:{given['SOAP_SERVE_PORT']}"]}]

"""`soap serve` as a user calls it: what it refuses, and what it says when it starts."""

import importlib.util
import json
import socket

import pytest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "give a token"),
        (["--host", "0.0.0.0", "--token", "short"], "at least 16"),
        (["--model", "nobody"], "unknown model"),
        (["--port", "99999"], "--port"),
        (["--batch", "0"], "--batch"),
        (["--queue", "0"], "--queue"),
        (["--gather", "-1"], "--gather"),
        (["--host", "203.0.113.7", "--token", "t" * 20], "cannot listen"),
        (["--host", "no such host", "--token", "t" * 20], "no address of this machine"),
    ],
)
def test_a_bad_start_is_one_clear_line(run, arguments, words):
    pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
    if "--model" not in arguments:
        arguments = [*arguments, "--model", "mnist-fcn-dr"]
    done = run("serve", *arguments)
    assert done.code == 2
    assert done.out == ""
    assert words in done.err
    assert len(done.err.splitlines()) == 1


def test_a_port_that_is_taken_is_named(run):
    pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--model", "mnist-fcn-dr", "--port", port)
    assert done.code == 2
    assert f"port {port}" in done.err


def test_without_the_extra_it_says_what_to_install(run, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    done = run("serve")
    assert done.code == 2
    assert "uvicorn" in done.err
    assert "pip install 'soap-defense[serve]'" in done.err


def test_it_says_where_it_serves_and_takes_its_token_from_the_environment(run, monkeypatch):
    pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")
    started = {}

    def note(keeper, ready):
        started["plan"] = keeper.plan
        keeper.bound.close()
        ready()

    monkeypatch.setattr("soap.serve.keeper.Keeper.run", note)
    monkeypatch.setenv("SOAP_TOKEN", "t" * 20)
    done = run("serve", "--model", "mnist-fcn-dr", "--port", 0, "--host", "0.0.0.0", "--batch", 5, "--queue", 6,
               "--gather", 7, "--json", "-v")  # fmt: skip
    assert done.code == 0
    assert done.json["url"].startswith("http://0.0.0.0:")
    assert done.json["models"] == ["mnist-fcn-dr"]
    plan = started["plan"]
    assert (plan.limits.batch, plan.limits.queue, plan.limits.gather) == (5, 6, 0.007)
    assert plan.log_requests is True
    assert plan.token == "t" * 20
    assert "tttt" not in done.out + done.err + repr(plan)
    assert json.loads(done.out)["command"] == "serve"

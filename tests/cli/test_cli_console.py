"""What all commands share: help, common options, streams, exit codes, completion."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer

import soap
from soap import cli
from soap.cli import COMMANDS as REGISTERED
from soap.cli.console import JSON_SCHEMA, CommonOptions, Console, command, error_message
from soap.errors import FileError, InputError

COMMANDS = [
    "demo", "predict", "attack", "purify", "evaluate", "train", "models", "data list", "data download", "data import",
    "data export", "bench purify", "bench attack", "bench train", "reproduce", "report", "verify", "tune", "serve",
    "export", "detect", "certify", "merge", "compare", "cite", "push",
]  # fmt: skip
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_the_common_options(run, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "200")
    shown = run(*name.split(), "--help")
    assert shown.code == 0
    assert f"Example: soap {name}" in shown.out
    # A batch size of training is the recipe's; a service draws nothing at random; files are written on the CPU.
    left_out = {"train": {"batch_size"}, "serve": {"seed"}, "export": {"device"}}.get(name, set())
    for option in {one.name for one in dataclasses.fields(CommonOptions)} - left_out:
        assert "--" + option.replace("_", "-") in shown.out
    for option in left_out:
        assert "--" + option.replace("_", "-") not in shown.out


def test_every_registered_command_is_tested_here():
    assert {name.split()[0] for name in COMMANDS} == {*REGISTERED}


def test_only_the_module_of_the_called_command_is_imported():
    code = "import sys; from soap.cli import main; main(['data', 'list']); print('soap.bench.command' in sys.modules)"
    assert process("-c", code).stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_do_not_import_torch(option):
    code = f"import sys; from soap.cli import main; main(['{option}']); print('torch' in sys.modules)"
    assert process("-c", code).stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(("given", "policy"), [(None, "passive"), ("active", "active")])
def test_waiting_threads_sleep_unless_the_user_decides(run, monkeypatch, given, policy):
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    assert run("--version").code == 0
    assert os.environ["OMP_WAIT_POLICY"] == policy


@pytest.mark.parametrize(
    ("content", "given", "threads"),
    [("350000 100000", None, "4"), ("350000 100000", "2", "2"), ("max 100000", None, None), (None, None, None)],
)
def test_a_container_has_as_many_threads_as_its_quota(tmp_path, monkeypatch, content, given, threads):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("OMP_NUM_THREADS", given or "")
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(cli, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    if content is not None:
        (tmp_path / "cpu.max").write_text(content)
    cli.set_thread_defaults()
    assert os.environ.get("OMP_NUM_THREADS") == threads


def test_version_and_call_without_arguments(run):
    assert run("--version").out == f"soap {soap.__version__}\n"
    bare = run()
    assert "Usage: soap" in bare.out + bare.err
    assert run("-h").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evalute"], "Did you mean 'evaluate'?"),
        (["evaluate"], "MODEL"),
        (["evaluate", "mnist-fcn-dr", "--limt", "3"], "--limt"),
        (["evaluate", "mnist-fcn-dr", "--batch-size", "0"], "--batch-size"),
        (["evaluate", "mnist-fcn-dr", "--batch", "0"], "--batch-size"),  # its name in older versions
        (["evaluate", "mnist-fcn-dr", "--seed", "-1"], "--seed"),
        (["evaluate", "mnist-fcn-dr", "--limit", "0"], "--limit"),
        (["evaluate", "mnist-fcn-dr", "--eps", "8/0"], "'8/0' is not a number or a fraction like 8/255"),
        (["attack", "mnist-fcn-dr", "x.png"], "--out"),
        (["train", "mnist-fcn-dr", "--batch-size", "3"], "--batch-size"),
        (["data", "list", "--device", "gpu"], "did you mean cpu?"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(run, tmp_path, arguments, said):
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert said in outcome.err
    assert list(tmp_path.iterdir()) == []


# --- The decorator, on an app of its own ------------------------------------------------------------------------


def call(capsys, function, *arguments, **settings):
    """Run a function as the one command of an app: exit code, standard output, standard error."""
    app = typer.Typer(pretty_exceptions_enable=False)
    command("try it", example="soap try it", app=app, **settings)(function)
    with pytest.raises(SystemExit) as done:
        app(list(arguments))
    out, err = capsys.readouterr()
    return done.value.code, out, err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("wrong number"), 2, "error: wrong number\n"),
        (FileError("no file"), 1, "error: no file\n"),
        (MemoryError(), 1, "error: out of memory; use a smaller --batch-size.\n"),
        (KeyboardInterrupt(), 130, "stopped\n"),
        (
            RuntimeError("two\nlines"),
            1,
            "error: unexpected RuntimeError: two lines. This is a bug in soap: please run again with --debug and "
            "report it.\n",
        ),
    ],
)
def test_errors_are_one_line_and_a_code(capsys, error, code, line):
    def fail(console: Console) -> None:
        """Fail."""
        raise error

    assert call(capsys, fail) == (code, "", line)
    got, out, err = call(capsys, fail, "--debug")
    assert (got, out) == (code, "")
    assert err.endswith(line)
    assert ("Traceback" in err) == (code != 130)


def test_json_goes_to_standard_output_and_messages_to_standard_error(capsys):
    def show(console: Console) -> None:
        """Print."""
        console.info("always")
        console.info("on request", level=1)
        console.result({"path": Path("a"), "n": 3}, "for people")

    assert call(capsys, show) == (0, "for people\n", "always\n")
    assert call(capsys, show, "-q") == (0, "for people\n", "")
    assert call(capsys, show, "-v") == (0, "for people\n", "always\non request\n")
    code, out, err = call(capsys, show, "--json", "-q")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"schema": JSON_SCHEMA, "command": "try it", "path": "a", "n": 3}


def test_common_options_can_be_omitted_or_replaced(capsys):
    def show(console: Console, seed: int | None = None) -> None:
        """Print."""
        console.result({"seed": seed, "batch_size": console.batch_size, "device": console.device}, "")

    assert json.loads(call(capsys, show, "--json", "--batch-size", "7", "--device", "cpu")[1]) == {
        "schema": JSON_SCHEMA, "command": "try it", "seed": None, "batch_size": 7, "device": "cpu"
    }  # fmt: skip
    assert json.loads(call(capsys, show, "--json", "--seed", "4", without=("batch_size",))[1])["seed"] == 4
    assert call(capsys, show, "--batch-size", "7", without=("batch_size",))[0] == 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    first: Annotated[int, typer.Option("--first", help="The first.")]
    second: Annotated[str, typer.Option("--second", help="The second.")] = "b"


def test_a_dataclass_parameter_becomes_one_option_per_field(capsys):
    def show(console: Console, name: str, pair: Pair) -> None:
        """Show."""
        console.result({"name": name, "first": pair.first, "second": pair.second}, "")

    def printed(*arguments):
        return json.loads(call(capsys, show, *arguments, "--json")[1])

    assert printed("x", "--first", "3") == {
        "schema": JSON_SCHEMA, "command": "try it", "name": "x", "first": 3, "second": "b"
    }  # fmt: skip
    assert printed("x", "--first", "3", "--second", "c")["second"] == "c"
    assert call(capsys, show, "x")[0] == 2  # --first is required
    assert "The second." in call(capsys, show, "--help")[1]


def test_a_pipe_gets_unfolded_tables_and_no_progress(capsys):
    from soap.cli.console import table

    def show(console: Console) -> None:
        """Print."""
        view = table("a", "b", right=("b",))
        view.add_row("x" * 300, "y" * 300)
        with console.progress() as show:
            show("work", 1, 2, "half")
        console.result({}, view)

    code, out, err = call(capsys, show)
    assert (code, err) == (0, "")
    assert "x" * 300 in out
    assert "y" * 300 in out


def test_progress_shows_on_a_terminal_and_honours_no_color(monkeypatch):
    import io

    import rich.console
    import torch

    def bars(**environment):
        screen = io.StringIO()
        terminal = {"TERM": "xterm", **environment}
        screen_console = rich.console.Console(file=screen, force_terminal=True, width=100, _environ=terminal)
        console = Console(command="x", device=torch.device("cpu"), seed=0, batch_size=1, json=False, verbose=0,
                      quiet=False, errors=screen_console)  # fmt: skip
        with console.progress() as show:
            show("training", 1, 2, "epoch 1/2")
        return screen.getvalue()

    assert "training" in bars()
    assert " 50%" in bars()
    assert "epoch 1/2" in bars()
    assert "\x1b[35m" in bars()
    assert "\x1b[35m" not in bars(NO_COLOR="1")


# --- The process itself -----------------------------------------------------------------------------------------


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, cwd=ROOT
    )


def test_errors_are_the_same_without_assertions():
    done = process("-O", "-m", "soap", "evaluate", "mnist-cnn-d")
    assert (done.returncode, done.stdout) == (2, "")
    names = "mnist-cnn-dr or mnist-fcn-dr or mnist-fcn-no-def"
    assert done.stderr == f"error: unknown model 'mnist-cnn-d'; did you mean {names}?\n"


def complete(run, monkeypatch, line):
    words = line.split(" ")
    with monkeypatch.context() as patch:
        patch.setenv("_SOAP_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(len(words) - 1))
        return run().out.split()


def test_names_are_completed_in_the_shell(run, monkeypatch, tmp_path):
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "last.safetensors").touch()
    (tmp_path / "runs" / "notes.txt").touch()
    assert complete(run, monkeypatch, "soap ev") == ["evaluate"]
    assert complete(run, monkeypatch, "soap evaluate mnist-cnn-d") == ["mnist-cnn-dr"]
    assert complete(run, monkeypatch, "soap evaluate runs/") == ["runs/one/", "runs/last.safetensors"]
    assert complete(run, monkeypatch, "soap train cifar100-resnet18-r") == ["cifar100-resnet18-rp"]
    assert complete(run, monkeypatch, "soap evaluate x --attack ") == ["none", "fgsm", "pgd", "cw", "df"]
    assert complete(run, monkeypatch, "soap evaluate x --data mnist") == ["mnist-mini", "mnist"]
    assert complete(run, monkeypatch, "soap data download cifar1") == ["cifar10", "cifar100"]


def test_out_of_device_memory_has_its_own_message():
    import torch

    assert error_message(torch.OutOfMemoryError("CUDA")) == "out of memory; use a smaller --batch-size."

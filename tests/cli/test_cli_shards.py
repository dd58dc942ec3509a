"""`soap evaluate --shard`, `soap merge` and `soap compare`, and the commands of the jobs in docs/scale.md."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from run_content import content

from soap.cli import COMMANDS, load_command, main
from soap.evaluation.verdict import PASSED

ROOT = Path(__file__).parents[2]
SHORT = ("evaluate", "mnist-fcn-dr", "--suite", "noise", "--data", "mnist-mini", "--limit", "10", "--eps", "0.1",
         "--batch-size", "4")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of one process, and two shards of it."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOAP_COMMIT", "test")
        patch.chdir(place)
        assert main([*SHORT, "--out", "whole", "--quiet"]) == 0
        for index in (0, 1):
            assert main([*SHORT, "--out", f"run/{index}", "--shard", f"{index}/2", "--quiet"]) == 0
    return place


def test_shards_are_merged_and_finished_by_the_printed_command(run, made, tmp_path):
    merged = run("merge", made / "run" / "0", made / "run" / "1", "--out", "run", "--json")
    assert merged.code == 0
    assert (merged.json["shards"], merged.json["images"]) == (2, 10)
    finish = shlex.split(merged.json["finish"])
    assert finish[:2] == ["soap", "evaluate"]
    assert "--shard" not in finish
    assert run("report", "run", "--out", "page.html", "--json").json["verdict"] != PASSED  # its checks are missing
    assert run(*finish[1:]).code == 0
    ours, wanted = content(tmp_path / "run"), content(made / "whole")
    for files in (ours, wanted):
        files["facts/asked.json"]["command"] = re.sub("--out .*", "", files["facts/asked.json"]["command"])
    assert ours == wanted
    assert run("verify", "run").code == 0


def test_a_shard_says_which_images_it_has(run):
    found = run(*SHORT, "--shard", "1/2", "--json")
    assert found.code == 0
    assert found.json["run"] == "runs/mnist-fcn-dr-noise/1"
    assert (found.json["shard"], found.json["images"]) == ([1, 2], [4, 9])
    assert "soap merge" in run(*SHORT, "--shard", "1/2").err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--shard 1of2", "expected I/N"),
        ("--shard 2/2", "expected 0/2 to 1/2"),
        ("--shard 0/9", "9 shards of 3 batches"),
        ("--shard 0/2 --require passed", "--require excludes --shard"),
    ],
)
def test_bad_shards_are_one_line_and_nothing_is_written(run, tmp_path, options, said):
    done = run(*SHORT, *options.split())
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert list(tmp_path.iterdir()) == []


def test_shards_need_a_suite(run):
    done = run("evaluate", "mnist-fcn-dr", "--data", "mnist-mini", "--shard", "0/2")
    assert done.code == 2
    assert "--shard needs --suite" in done.err


def test_shards_that_do_not_belong_together_are_refused(run, made):
    done = run("merge", made / "run" / "1", "--out", "run")
    assert done.code == 2
    assert "of 2 shards, 0 is missing" in done.err
    for name in ("report", "verify"):
        assert "merge all shards" in run(name, made / "run" / "0").err
    assert run("merge", "nowhere", "--out", "run").code == 1


def test_compare_prints_a_line_for_each_protocol(run, made, monkeypatch):
    monkeypatch.chdir(made)
    assert run(*SHORT[:1], "mnist-fcn-pgd-at", *SHORT[2:], "--out", "other").code == 0
    found = run("compare", "whole", "other", "--json")
    assert found.code == 0
    assert [line["protocol"] for line in found.json["protocols"]][:2] == ["clean", "noise"]
    assert (found.json["a"]["model"], found.json["b"]["model"]) == ("mnist-fcn-dr", "mnist-fcn-pgd-at")
    assert all(0 <= line["p_value"] <= 1 for line in found.json["protocols"])
    shown = run("compare", "whole", "other").out
    assert "A: mnist-fcn-dr, whole:" in shown
    assert any(line.split()[0] == "noise" and len(line.split()) == 9 for line in shown.splitlines() if line.split())


def test_runs_on_other_images_are_not_compared(run, made):
    fewer = [*SHORT]
    fewer[fewer.index("--limit") + 1] = "9"
    assert run(*fewer, "--out", "fewer").code == 0
    done = run("compare", made / "whole", "fewer")
    assert done.code == 2
    assert "different images: 10 of mnist-mini/test and 9 of mnist-mini/test" in done.err
    assert run("compare", made / "run" / "0", made / "whole").code == 2


PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")


def commands_in(script: str) -> list[list[str]]:
    """The arguments of every call of soap in a shell script, with shell variables as numbers."""
    script = re.sub(r"\\\n", " ", script)
    script = re.sub(r"\$\(\(.*?\)\)|\$\(.*?\)|['\"]", "", script)  # the words inside quotes stay
    script = re.sub(r"\$\{?\w+\}?", "1", script.replace("$RESUME", "--resume"))
    calls = [re.split(r"&&|\|\||[;|]", call)[0] for call in re.findall(r"(?:^|\s)soap ([a-z]+ .*)", script)]
    return [shlex.split(call) for call in calls]


def jobs() -> dict[str, list[list[str]]]:
    """The commands of the job scripts and of the manifests of the page."""
    found = {}
    for number, script in enumerate(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)):
        found[f"script {number}"] = commands_in(script)
    for manifest in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        for part in yaml.safe_load_all(manifest):
            if part["kind"] == "Job":
                spec = part["spec"]["template"]["spec"]
                for container in [*spec.get("initContainers", []), *spec["containers"]]:
                    script = " ".join([*container["command"], *container.get("args", [])])
                    found[f"{part['metadata']['name']} {container['name']}"] = commands_in(script)
    return found


def test_the_page_shows_shards_for_slurm_and_kubernetes():
    used = {name: {call[0] for call in calls} for name, calls in jobs().items()}
    assert sum({"merge", "evaluate"} <= each for each in used.values()) >= 2
    sharded = [name for name, calls in jobs().items() if any("--shard" in call for call in calls)]
    assert any(name.startswith("script") for name in sharded)
    assert any(not name.startswith("script") for name in sharded)


@pytest.mark.parametrize("name", [name for name, calls in jobs().items() if calls])
def test_the_commands_of_the_jobs_are_parsed_by_the_command_line(name):
    for call in jobs()[name]:
        assert call[0] in COMMANDS
        command = load_command(call[0])
        parsed = command.make_context(call[0], call[1:], resilient_parsing=False)
        assert json.dumps(parsed.params, default=str)
        with pytest.raises(Exception, match="No such option"):  # the parser notices a wrong option
            command.make_context(call[0], [*call[1:], "--no-such-option"])


def test_the_number_of_shards_is_the_same_in_all_commands_of_a_job():
    for manifest in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        for part in yaml.safe_load_all(manifest):
            if part["kind"] == "Job" and "--shard" in str(part):
                assert part["spec"]["completionMode"] == "Indexed"
                counts = re.findall(r"--shard \S+/(\d+)", str(part))
                assert counts == [str(part["spec"]["completions"])]
    for script in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL):
        if "--shard" in script and "--array" in script:
            first, last = re.search(r"--array=(\d+)-(\d+)", script).groups()
            assert first == "0"
            assert re.findall(r"--shard \S+/(\d+)", script) == [str(int(last) + 1)]

"""`soap evaluate --purifier`: every purifier by name, with and without --suite, for models with and without a task."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import soap
from soap import recipes, zoo
from soap._files import tensor_files
from soap.evaluation import PAPER
from soap.evaluation.run_folder import RunFolder
from soap.purifiers import (
    AntiAdversary,
    BitDepth,
    DefenseGAN,
    EnergyDescent,
    Hedge,
    JpegCompression,
    MedianFilter,
    Reformer,
    Smoothing,
    ViewAverage,
)
from soap.recipes import generative
from soap.recipes.run_request import read_request
from soap.results import Store
from soap.specs import defence_spec

COMMITTED = Path(__file__).parents[2] / "results" / "adaptive"
MODEL, WITHOUT_TASK = "mnist-fcn-dr", "mnist-fcn-pgd-at"
QUICK = ("--data", "mnist-mini", "--limit", "12")
SUITE = (*QUICK, "--suite", "quick", "--steps", "2", "--queries", "5", "--eps", "0.1", "--batch-size", "8")
PRIOR = """name = "own"
data = "mnist-mini"
[model]
kind = "wgan"
latent = 4
width = 2
[training]
epochs = 3
lr = 1e-3
[purifier]
steps = 4
starts = 2
"""
PIXELS = """name = "grey"
data = "mnist-mini"
[model]
kind = "pixelcnn"
inputs = [1, SIDE, SIDE]
channels = 4
blocks = 1
mixtures = 1
[training]
epochs = 1
lr = 1e-3
[purifier]
eps = "2/255"
"""


def save(path, text):
    recipe = generative.parse(text, "test")
    tensor_files.save_tensors(path, generative.build(recipe).state_dict(), {"recipe": text})
    return path


@pytest.fixture(autouse=True)
def priors(run, tmp_path):
    """Untrained priors in the folder where the commands run."""
    save(tmp_path / "gan.safetensors", PRIOR)
    save(tmp_path / "pixels.safetensors", PIXELS.replace("SIDE", "28"))
    save(tmp_path / "small.safetensors", PIXELS.replace("SIDE", "8"))


def right(model, purify, x, y):
    """The number of correctly classified images, one image at a time."""
    return sum(int(model(purify(one).x).argmax(1) == label) for one, label in zip(x.split(1), y.split(1), strict=True))


@pytest.mark.parametrize("name", [MODEL, WITHOUT_TASK])
def test_rows_are_a_plain_count_with_and_without_an_auxiliary_task(run, some, name, tmp_path):
    chosen = ("--purifier", "hedge", "--purifier", "anti-adversary", "--purifier", "defense-gan")
    done = run("evaluate", name, *QUICK, "--attack", "fgsm", "--seed", "5", *chosen[:4], "--json")
    assert (done.code, "bare figures only" in done.err) == (0, False)
    model = soap.load(name)
    x = PAPER["mnist-mini"]["fgsm"](model, some.x, some.y)
    purifiers = [Hedge(model, seed=5), AntiAdversary(model)]
    rows = done.json["rows"]
    assert [row["defence"] for row in rows] == [asdict(defence_spec(one)) for one in (None, *purifiers)]
    assert [row["defence"]["eps"] for row in rows] == [None, 8 / 255, 0.3]
    assert [row["correct"] for row in rows[1:]] == [right(model, one, x, some.y) for one in purifiers]
    assert rows[1]["provenance"]["weights_sha256"] == rows[0]["provenance"]["weights_sha256"]
    done = run("evaluate", name, *QUICK, "--attack", "fgsm", *chosen[4:], "--prior", "gan.safetensors", "--json")
    row, gan = done.json["rows"][1], DefenseGAN(zoo.load_prior(tmp_path / "gan.safetensors"), steps=4, starts=2)
    assert (row["defence"], row["correct"]) == (asdict(defence_spec(gan)), right(model, gan, x, some.y))
    assert row["provenance"]["weights_sha256"] != rows[0]["provenance"]["weights_sha256"]
    assert row["provenance"]["training"]["prior"] == {"name": "own", "epochs": 3, "seed": 0}


def test_the_table_names_the_purifier_and_soap_is_the_default(run):
    done = run("evaluate", MODEL, *QUICK, "--attack", "none", "--purifier", "hedge", "--purifier", "soap")
    assert "Hedge (0.03137254901960784), %" in " ".join(done.out.split())
    assert "purified (min-aux), %" in " ".join(done.out.split())
    default = run("evaluate", MODEL, *QUICK, "--attack", "none", "--json").json["rows"]
    named = run("evaluate", MODEL, *QUICK, "--attack", "none", "--purifier", "soap", "--json").json["rows"]
    assert [row["key"] for row in default] == [row["key"] for row in named]


def test_another_prior_of_the_same_name_gives_another_row(run, tmp_path):
    arguments = ("evaluate", MODEL, *QUICK[:2], "--limit", "2", "--attack", "none", "--purifier", "pixeldefend")
    first = run(*arguments, "--prior", "pixels.safetensors", "--eps-pfy", "1/255", "--json").json["rows"]
    assert first[1]["defence"] == {"name": "PixelDefend", "settings": {"eps": 1 / 255}, "eps": 1 / 255}
    recipe = generative.parse(PIXELS.replace("SIDE", "28"), "test")
    model = generative.build(recipe)
    weights = {key: value + 0.1 for key, value in model.state_dict().items()}
    tensor_files.save_tensors(tmp_path / "pixels.safetensors", weights, {"recipe": recipe.text})
    second = run(*arguments, "--prior", "pixels.safetensors", "--eps-pfy", "1/255", "--json").json["rows"]
    assert first[0]["key"] == second[0]["key"]
    assert first[1]["key"] != second[1]["key"]
    assert len(Store(tmp_path / "runs" / "results.jsonl").read()) == 3


@pytest.mark.parametrize("name", [MODEL, WITHOUT_TASK])
def test_a_suite_run_of_hedge_can_be_verified(run, name, tmp_path):
    done = run("evaluate", name, *SUITE, "--purifier", "hedge", "--eps-pfy", "0.05", "--seed", "2", "--json")
    assert done.code == 0
    assert done.json["defence"] == f"Hedge(eps=0.05, step_size={4 / 255}, steps=20, seed=2)"
    made = ["noise", "transfer", "iterates", "square", "classifier"]  # "classifier": the attacks on it without Hedge
    assert [line["protocol"] for line in done.json["protocols"]] == made
    place = tmp_path / "runs" / f"{name}-hedge-quick"
    command = json.loads((place / "facts" / "asked.json").read_text())["command"]
    assert " --purifier hedge --eps-pfy 0.05 " in command
    assert run("verify", place).code == 0
    assert run("report", place).code == 0
    assert run(*command.split()[1:], "--json").json["headline"] == done.json["headline"]


def test_a_suite_with_a_prior_stores_the_fingerprints_of_both_networks(run, tmp_path):
    arguments = ("--suite", "noise", *QUICK, "--eps", "0.1", "--purifier", "defense-gan", "--prior", "gan.safetensors")
    done = run("evaluate", WITHOUT_TASK, *arguments, "--out", "behind", "--json")
    assert (done.code, done.json["rows"][0]["defence"]["eps"]) == (0, "free")
    assert done.json["left_out"]["unrolled"] == "purifier without iterates"
    assert run("verify", "behind").code == 0
    recipe = zoo.prior_recipe(tmp_path / "gan.safetensors")
    with torch.no_grad():
        built = generative.build(recipe).state_dict()
        weights = {key: value + 0.1 if value.is_floating_point() else value for key, value in built.items()}
    tensor_files.save_tensors(tmp_path / "gan.safetensors", weights, {"recipe": recipe.text})
    other = run("verify", "behind")
    assert other.code == 1
    assert "the weights of the run" in other.out


@pytest.mark.parametrize(("name", "bare"), [("mnist-fcn-dr", False), ("cifar10-resnet18-pgd-at", True)])
def test_requests_of_older_versions_are_read(tmp_path, name, bare):
    shutil.copytree(COMMITTED / name, tmp_path / name)
    path = tmp_path / name / "facts" / "asked.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    for later in ("purifier", "prior", "seed", "checksum"):
        del kept[later]
    path.write_text(json.dumps(kept), encoding="utf-8")
    found = read_request(RunFolder(tmp_path / name))
    assert (found.purifier, found.prior, found.seed, found.bare) == ("soap", None, 0, bare)


EVALUATE = f"evaluate {MODEL} --data mnist-mini --limit 4 --attack none"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"{EVALUATE} --purifier hedgehog", "unknown purifier 'hedgehog'; did you mean hedge"),
        (f"{EVALUATE} --purifier hedge --prior gan.safetensors", "hedge uses no prior, got gan.safetensors"),
        (f"{EVALUATE} --prior gan.safetensors", "--prior is the generative model of --purifier"),
        (f"{EVALUATE} --purifier hedge --eps-pfy min-aux", "eps='min-aux' is an option of SOAP only"),
        (f"{EVALUATE} --purifier hedge --eps-pfy -1", "eps is -1.0"),
        (f"{EVALUATE} --purifier anti-adversary --eps-pfy 0.1", "unknown setting of anti-adversary 'eps'"),
        (f"{EVALUATE} --purifier defense-gan --prior pixels.safetensors", "grey is a pixelcnn, but defense-gan uses"),
        (
            f"{EVALUATE} --purifier pixeldefend --prior small.safetensors",
            "grey was trained on images [1, 8, 8], but mnist-fcn-dr expects [1, 28, 28]",
        ),
        (
            f"{EVALUATE.replace(MODEL, WITHOUT_TASK)} --purifier soap",
            "was trained without an auxiliary task",
        ),
        (
            f"evaluate {MODEL} --data mnist-mini --suite quick --purifier hedge --purifier soap",
            "--suite evaluates one defence, got 2 of --purifier",
        ),
        (f"evaluate {WITHOUT_TASK} --data mnist-mini --suite quick --purifier soap", "without an auxiliary task"),
        (f"evaluate {MODEL} --data mnist-mini --suite quick --prior gan.safetensors", "--prior is the generative"),
    ],
)
def test_bad_usage_is_one_line_and_nothing_is_written(run, tmp_path, line, said):
    before = sorted(tmp_path.rglob("*"))
    done = run(*line.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert said in done.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_prior_that_is_not_bundled_names_its_training_command(run, tmp_path, monkeypatch):
    plain = recipes.read("mnist-fcn-no-def")
    weights = recipes.build(plain).state_dict()
    tensor_files.save_tensors(tmp_path / "bare.safetensors", weights, {"recipe": plain.text})
    monkeypatch.setattr(zoo, "folder", lambda: tmp_path / "none")
    done = run("evaluate", "bare.safetensors", *QUICK, "--attack", "none", "--purifier", "defense-gan")
    assert done.code == 2
    assert "soap train defense-gan-mnist" in done.err


FURTHER = [
    ("median", ("size=2",), lambda model: MedianFilter(2)),
    ("bit-depth", ("bits=1",), lambda model: BitDepth(1)),
    ("jpeg", ("quality=40",), lambda model: JpegCompression(40)),
    ("energy", ("eps=1/10", "steps=3"), lambda model: EnergyDescent(model, 0.1, steps=3)),
    ("autoencoder", (), lambda model: Reformer(zoo.load_prior("autoencoder-mnist"))),
]


@pytest.mark.parametrize(("name", "options", "plain"), FURTHER, ids=[name for name, *_ in FURTHER])
def test_purifiers_with_options_are_a_plain_count(run, some, name, options, plain):
    given = [part for option in options for part in ("--purifier-option", option)]
    done = run("evaluate", MODEL, *QUICK, "--attack", "fgsm", "--purifier", name, *given, "--json")
    assert done.code == 0
    model = soap.load(MODEL)
    row, purify = done.json["rows"][1], plain(model)
    x = PAPER["mnist-mini"]["fgsm"](model, some.x, some.y)
    assert row["defence"] == asdict(defence_spec(purify))
    assert row["correct"] == right(model, purify, x, some.y)


def test_classifiers_around_a_classifier_are_scored_on_images_that_attack_the_inner_one(run, some, tmp_path):
    chosen = ("--purifier", "views", "--purifier", "smoothing", "--purifier", "median")
    done = run("evaluate", MODEL, *QUICK, "--attack", "fgsm", *chosen, "--json")
    assert done.code == 0
    rows = {row["defence"]["name"]: row for row in done.json["rows"]}
    assert [*rows] == ["none", "MedianFilter", "ViewAverage", "Smoothing"]
    model = soap.load(MODEL)
    x = PAPER["mnist-mini"]["fgsm"](model, some.x, some.y)
    assert rows["ViewAverage"]["correct"] == int((ViewAverage(model)(x).argmax(1) == some.y).sum())
    torch.manual_seed(0)
    MedianFilter()(x)
    assert rows["Smoothing"]["correct"] == int((Smoothing(model)(x).argmax(1) == some.y).sum())
    again = run("evaluate", MODEL, *QUICK, "--attack", "fgsm", *chosen, "--json")
    assert [row["key"] for row in again.json["rows"]] == [row["key"] for row in done.json["rows"]]
    assert len(Store(tmp_path / "runs" / "results.jsonl").read()) == 4


@pytest.mark.parametrize(("name", "option"), [("views", "shift=1"), ("bit-depth", "bits=2")])
def test_a_suite_run_with_options_stores_them(run, name, option, tmp_path):
    done = run("evaluate", MODEL, *SUITE, "--purifier", name, "--purifier-option", option, "--json")
    assert done.code == 0
    request = read_request(RunFolder(tmp_path / "runs" / f"{MODEL}-{name}-quick"))
    assert request.purifier_options == (option,)
    assert f"--purifier {name}" in request.command
    assert request.command.endswith(f"--purifier-option {option}")
    defence = request.defence(torch.device("cpu"))
    assert defence.name == (f"{MODEL} in ViewAverage(shift=1, flip=False)" if name == "views" else MODEL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--purifier-option", "bits=1"), "belongs to one --purifier"),
        (("--purifier", "median", "--purifier-option", "bits=1"), "unknown setting of median 'bits'"),
        (("--purifier", "median", "--purifier-option", "size=big"), "size is 'big'; expected an integer"),
        (("--purifier", "median", "--purifier-option", "size"), "expected NAME=VALUE"),
        (("--purifier", "views", "--eps-pfy", "0.1"), "unknown setting of views 'eps'"),
        (("--purifier", "medain"), "did you mean median"),
    ],
)
def test_bad_purifier_options_are_usage_errors(run, options, message):
    done = run("evaluate", MODEL, *QUICK, "--attack", "none", *options)
    assert done.code == 2
    assert message in " ".join(done.err.split())

"""The figures as data: their words, what they need, what is missing, and how it is made."""

import dataclasses
import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from matplotlib.text import Text

import soap
from soap import recipes, zoo
from soap.evaluation import fingerprint
from soap.paper import figure_data, figure_list
from soap.paper.example_images import Examples
from soap.paper.figure_data import FigureData
from soap.paper.figure_list import FIGURES, SWEEPS, FileInput, InputOptions, SweepInput, TimingInput
from soap.paper.figures import DRAWINGS
from soap.paper.radius_curve import RadiusCurve
from soap.paper.sweeps import fixed_radii
from soap.report.drawing import LIGHT
from soap.results import Store

KEPT = Path(__file__).parents[2] / "results" / "figures"
MODEL = "mnist-fcn-dr"


@pytest.fixture
def digits(monkeypatch):
    """The bundled digits in place of MNIST; loads are noted."""
    loaded = []
    mini = soap.data.load("mnist-mini").take(40)

    def load(name, split, *, root):
        loaded.append((name, split, root))
        return dataclasses.replace(mini, name=name)

    monkeypatch.setattr(soap.data, "load", load)
    return loaded


@pytest.fixture(scope="module")
def model():
    return soap.load(MODEL)


@pytest.fixture(scope="module")
def quick():
    """The attacks of the figures of examples, but for the slow one."""
    return {name: attack for name, attack in figure_list.PAPER["mnist"].items() if name != "cw"}


def options(folder, **others):
    return InputOptions(folder=folder, store=Store(folder / "rows.jsonl"), **others)


def test_the_names_are_those_of_the_drawings_and_of_the_words():
    words = tomllib.loads((resources.files("soap.paper") / "figures.toml").read_text(encoding="utf-8"))
    assert list(FIGURES) == list(DRAWINGS) == list(words)
    assert all(set(entry) == {"title", "caption"} for entry in words.values())
    assert [name for name in FIGURES if name.startswith("figure")] == [f"figure-{k}" for k in range(1, 11)]


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_every_figure_has_words(figure):
    assert figure.title
    assert figure.caption.endswith(".")


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_what_the_data_lack_the_drawing_lacks_too(figure, tmp_path):
    material = FigureData(folder=tmp_path)
    missing = figure.missing(material)
    assert len(missing) == len(figure.inputs)
    drawn = DRAWINGS[figure.name](material, LIGHT)
    said = " ".join(text.get_text().replace("\n", " ") for text in drawn.findobj(Text))
    for piece in figure.inputs:
        name = getattr(piece, "recipe", None) or getattr(piece, "name", None) or piece.model
        assert re.search(rf"no [\w ]+ {name}\b", said), name
        assert any(name in words for words in missing)
        assert name in recipes.names() or (isinstance(piece, FileInput) and piece.model is None)


def test_models_are_those_whose_weights_help():
    assert FIGURES["figure-8"].models == ("mnist-fcn-dr", "mnist-cnn-dr")
    assert FIGURES["figure-7"].models == FIGURES["figure-1"].models == FIGURES["figure-6"].models == ()
    assert len(FIGURES["figure-7"].inputs) == 18


def test_files_are_gathered_once_for_the_same_weights(tmp_path, digits, model, quick, monkeypatch):
    monkeypatch.setitem(figure_list.PAPER, "mnist", quick)
    root = tmp_path / "root"
    made = {
        name: FIGURES[name].make_inputs({MODEL: model}, options(tmp_path, data_root=root, limit=20))
        for name in ("figure-2", "figure-3", "figure-8")
    }
    assert made == {
        "figure-2": ["images of mnist-fcn-dr under every attack"],
        "figure-3": ["auxiliary losses of mnist-fcn-dr against the radius"],
        "figure-8": [],  # the same images; those of the CNN are not to be had
    }
    assert digits == [("mnist", "test", root)] * 2
    shown = figure_data.read(tmp_path / figure_data.file_name(Examples, MODEL), Examples)
    assert shown.attacks == tuple(name for name in quick if name != "none")
    assert len(shown.truth) == 10
    curve = figure_data.read(tmp_path / figure_data.file_name(RadiusCurve, MODEL), RadiusCurve)
    assert (curve.n, curve.eps_adv) == (20, pytest.approx(0.3, abs=1e-6))
    material = FigureData(folder=tmp_path)
    assert FIGURES["figure-2"].missing(material) == []
    assert FIGURES["figure-8"].missing(material) == ["no images of mnist-cnn-dr yet"]

    other = soap.load(MODEL)
    with soap._runtime.isolation.preserved_random_state():
        next(other.parameters()).data.mul_(1.01)
    again = FIGURES["figure-3"].make_inputs({MODEL: other}, options(tmp_path, limit=20))
    assert again == ["auxiliary losses of mnist-fcn-dr against the radius"]
    assert figure_data.read(tmp_path / figure_data.file_name(RadiusCurve, MODEL), RadiusCurve).provenance[
        "weights_sha256"
    ] == fingerprint(other)


@pytest.mark.parametrize("name", ["figure-5", "ablation-radius"])
def test_rows_are_measured_once_and_then_nothing_of_the_model_is_missing(tmp_path, digits, model, name):
    store = Store(tmp_path / "rows.jsonl")
    figure, (piece, *_) = FIGURES[name], FIGURES[name].inputs
    before = figure.missing(FigureData(folder=tmp_path))
    assert figure.make_inputs({MODEL: model}, options(tmp_path, limit=3)) == [piece.need]
    after = figure.missing(FigureData(folder=tmp_path, rows=store.read()))
    assert after == before[1:]
    assert len(SWEEPS[piece.sweep].find(store.read(), MODEL)) == SWEEPS[piece.sweep].cells
    assert figure.make_inputs({MODEL: model}, options(tmp_path, limit=3)) == []


def test_a_sweep_cut_off_tells_how_far_it_came(tmp_path, digits, model):
    rows = fixed_radii(model, soap.data.load("mnist", "test", root=None).take(3), (0.0, 0.1))
    words = FIGURES["ablation-radius"].missing(FigureData(folder=tmp_path, rows=rows))
    assert words[0] == "only 3 of 12 rows of mnist-fcn-dr with one radius for all images yet"


def test_views_need_no_model(tmp_path, monkeypatch):
    seen = soap.data.load("mnist-mini").take(20)
    classes = (*seen.classes[:7], "horse", *seen.classes[8:])
    monkeypatch.setattr(soap.data, "load", lambda name, *_, **__: dataclasses.replace(seen, name=name, classes=classes))
    assert FIGURES["figure-6"].make_inputs({}, options(tmp_path)) == ["an image of cifar10 as the tasks see it"]
    assert FIGURES["figure-6"].missing(FigureData(folder=tmp_path)) == []
    assert FIGURES["figure-6"].make_inputs({}, options(tmp_path)) == []


def test_a_stop_is_asked_before_every_piece(tmp_path, digits, model):
    done = FIGURES["figure-3"].make_inputs({MODEL: model}, options(tmp_path, limit=5, stop=lambda: True))
    assert (done, digits) == ([], [])


def test_timings_are_found_by_what_and_model_and_their_mean(tmp_path):
    def missing(*rows):
        seconds = {"median": 1.0} | ({"mean": 1.0} if rows[-1:] == ("mean",) else {})
        timings = [
            {"what": what, "model": model, "paths": {"ours": {"seconds": seconds}}}
            for what, model in (row.split() for row in rows if row != "mean")
        ]
        return TimingInput("mnist-fcn-dr").missing(FigureData(folder=tmp_path, timings=timings))

    command = "(soap bench train --alone --epochs 30 --model mnist-fcn-dr)"
    assert missing("purify mnist-fcn-dr", "train mnist-cnn-dr", "mean") == f"no timing of mnist-fcn-dr yet {command}"
    assert missing("train mnist-fcn-dr") == f"no mean over the epochs of mnist-fcn-dr yet {command}"
    assert missing("purify mnist-fcn-dr", "train mnist-fcn-dr", "mean") is None
    made = FIGURES["figure-7"].make_inputs({}, options(tmp_path))
    assert made == []  # `soap bench` alone times


def test_what_is_kept_was_made_with_the_bundled_weights_and_is_small():
    """Stale files fail here: remove them and gather again."""
    kept = {path.name: path for path in KEPT.glob("*.npz")}
    assert kept
    assert sum(path.stat().st_size for path in kept.values()) < 3_000_000
    for name in zoo.names():
        weights = fingerprint(zoo.load(name))
        for kind in (RadiusCurve, Examples):
            file = figure_data.file_name(kind, name)
            if file in kept:
                assert figure_data.read(kept[file], kind).provenance["weights_sha256"] == weights, file


def test_pieces_of_sweeps_name_sweeps():
    named = {piece.sweep for figure in FIGURES.values() for piece in figure.inputs if isinstance(piece, SweepInput)}
    assert named == set(SWEEPS)

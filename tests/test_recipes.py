"""Recipes: one for every model of the paper, with the paper's values; errors name the file and the key."""

import pytest

import soap
from soap.recipes import names, parse, read

GOOD = """
name = "trial"
data = "mnist"
[model]
architecture = "fcn"
dropout = 0.0
[auxiliary]
task = "reconstruction"
decoder = "dense"
alpha = 100.0
noise = 0.5
[training]
epochs = 3
lr = 0.01
[purifier]
step_size = "4/255"
steps = 5
grid = [0.0, "8/255"]
"""


def test_every_model_of_the_paper_has_a_recipe():
    wanted = {f"mnist-{net}-{method}" for net in ("fcn", "cnn") for method in ("no-def", "fgsm-at", "pgd-at", "dr")}
    for data in ("cifar10", "cifar100"):
        for net in ("resnet18", "wide-resnet28"):
            wanted |= {f"{data}-{net}-{method}" for method in ("no-def", "fgsm-at", "pgd-at", "rp", "lc")}
    beyond_the_paper = {"cifar10-resnet18-mirror-at", "mnist-cnn-certified", "mnist-cnn-soap-at"}
    assert set(names()) - wanted == beyond_the_paper
    assert wanted <= set(names())


@pytest.mark.parametrize("name", names())
def test_bundled_recipe_builds_and_starts_with_its_command(name):
    recipe = read(name)
    assert recipe.name == name
    assert recipe.text.startswith(f"# soap train {name}\n")
    assert name.startswith(f"{recipe.data}-{recipe.architecture}-")
    assert (recipe.purifier is not None) == (recipe.task is not None)
    if recipe.architecture != "wide-resnet28":  # 146 MB each; one is built below
        model = soap.recipes.build(recipe)
        assert model.purifiable == (recipe.task is not None)
        assert model.classes == (100 if recipe.data == "cifar100" else 10)
        assert model.purification == recipe.purifier


def test_older_recipes_call_the_batch_size_batch():
    old, new = (
        parse(GOOD.replace("lr = 0.01", f"lr = 0.01\n{key} = 7"), "own.toml") for key in ("batch", "batch_size")
    )
    assert old.training == new.training
    assert old.training.batch_size == 7
    assert soap.zoo.recipe("mnist-fcn-dr").training.batch_size == 128


def test_wide_resnet_builds():
    assert sum(p.numel() for p in soap.recipes.build(read("cifar10-wide-resnet28-lc")).parameters()) == 36_489_290


# (recipe, epochs, lr, drops at these epochs, alpha, noise, T, gamma, number of radii), from the paper's appendix.
PAPER = [
    ("mnist-fcn-dr", 100, 0.01, [50], 100.0, 0.5, 5, 0.1, 11),
    ("mnist-cnn-dr", 200, 0.1, [100], 100.0, 0.5, 5, 0.1, 11),
    ("cifar10-resnet18-rp", 200, 0.1, [100, 150], 0.5, 0.1, 5, 4 / 255, 11),
    ("cifar10-resnet18-lc", 200, 0.1, [100, 150], 1.0, 0.1, 5, 4 / 255, 11),
    ("cifar100-resnet18-lc", 200, 0.1, [100, 150], 1.0, 0.1, 5, 4 / 255, 11),
]


@pytest.mark.parametrize(("name", "epochs", "lr", "drops", "alpha", "noise", "T", "gamma", "radii"), PAPER)
def test_recipe_has_the_settings_of_the_paper(name, epochs, lr, drops, alpha, noise, T, gamma, radii):
    recipe = read(name)
    schedule = recipe.training
    assert (schedule.epochs, schedule.lr, schedule.batch_size) == (epochs, lr, 128)
    assert (schedule.momentum, schedule.weight_decay) == (0.9, 1e-4)
    found = [e for e in range(5, epochs) if schedule.rate(e) < schedule.rate(e - 1)]
    assert found == drops
    assert (recipe.auxiliary["alpha"], recipe.auxiliary["noise"]) == (alpha, noise)
    assert recipe.purifier.steps == T
    assert recipe.purifier.step_size == pytest.approx(gamma)
    assert recipe.purifier.grid == pytest.approx([k * gamma for k in range(radii)])


def test_adversarial_recipes_have_the_attacks_of_the_paper():
    attacks = soap.attacks
    assert read("mnist-cnn-pgd-at").adversarial == attacks.PGD(eps=0.3, step_size=0.01, steps=40)
    assert read("mnist-fcn-fgsm-at").adversarial == attacks.FGSM(eps=0.3)
    assert read("cifar10-resnet18-pgd-at").adversarial == attacks.PGD(eps=8 / 255, step_size=2 / 255, steps=7)


def test_baselines_have_dropout_and_soap_dr_has_none():
    assert read("mnist-fcn-no-def").model["dropout"] == 0.5
    assert read("mnist-fcn-dr").model["dropout"] == 0.0


def test_initial_weights_depend_only_on_the_seed():
    first, second = (soap.recipes.build(parse(GOOD, "x")).state_dict() for _ in range(2))
    assert all(first[key].equal(second[key]) for key in first)
    other = soap.recipes.build(parse(GOOD.replace("epochs = 3", "epochs = 3\nseed = 7"), "x")).state_dict()
    assert not all(first[key].equal(other[key]) for key in first)


BAD = [
    ("epochs = 3", "epoch = 3", r"unknown key in \[training\] 'epoch'; did you mean epochs"),
    ("[purifier]", "[purifer]", "unknown key in recipe 'purifer'; did you mean purifier"),
    ("epochs = 3", "", r"missing key in \[training\] 'epochs'"),
    ("epochs = 3", "epochs = 0", "epochs is 0"),
    ("epochs = 3", 'epochs = "three"', "epochs is 'three'"),
    ("lr = 0.01", 'lr = "1/0"', "not a number or a fraction"),
    ("lr = 0.01", "lr = -1.0", "lr is -1.0"),
    ('name = "trial"', "name = 3", "expected a name in quotes"),
    ('name = "trial"', 'name = "../../elsewhere"', "expected only letters, digits"),
    ('name = "trial"', 'name = ".."', "expected only letters, digits"),
    ('data = "mnist"', "", "data = None"),
    ("[model]", "[[model]]", "expected a section"),
    ("name =", "name ==", "not valid TOML"),
    ("[training]", "training = 3\n[trainings]", "unknown key in recipe|expected a section|not valid TOML"),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[new or f"no {old}" for old, new, _ in BAD])
def test_mistake_in_a_recipe_raises_an_error_that_names_file_and_key(old, new, message):
    assert old in GOOD
    with pytest.raises(soap.InputError, match=message) as error:
        parse(GOOD.replace(old, new), "my.toml")
    assert str(error.value).startswith("my.toml: ")


BAD_TO_BUILD = [
    ('architecture = "fcn"', 'architecture = "fnc"', "did you mean fcn"),
    ("dropout = 0.0", "dorpout = 0.0", r"unknown option of the fcn architecture .dorpout.; did you mean dropout"),
    ('task = "reconstruction"', 'task = "reconstuction"', "did you mean reconstruction"),
    ('decoder = "dense"', 'decoder = "dens"', "did you mean dense"),
    ("noise = 0.5", "nosie = 0.5", r"unknown key in \[auxiliary\] 'nosie'; did you mean noise"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD_TO_BUILD, ids=[new for _, new, _ in BAD_TO_BUILD])
def test_mistake_in_network_options_raises_when_built(old, new, message):
    with pytest.raises(soap.InputError, match=message):
        soap.recipes.build(parse(GOOD.replace(old, new), "my.toml"))


def test_recipe_is_read_by_name_or_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert read(path).name == "trial"
    with pytest.raises(soap.InputError, match="did you mean mnist-fcn-dr"):
        read("mnist-fnc-dr")
    with pytest.raises(soap.FileError, match=r"gone\.toml: no such file"):
        read(tmp_path / "gone.toml")


def test_very_long_recipe_is_refused_before_parsing():
    with pytest.raises(soap.InputError, match="characters; expected at most"):
        parse(read("mnist-fcn-dr").text + "[" * 130_000, "test")

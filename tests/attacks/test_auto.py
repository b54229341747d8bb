"""AutoAttack against its authors' package, in each version, on a small network."""

import pytest
import torch
from torch import nn

from trimtab.attacks import APGD, L2, AutoAttack, Linf, Square, auto
from trimtab.types import BadInput

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS, QUERIES, TARGETS = 20, 300, 4


def reference(model, budget, version):
    """The images that the authors' package leaves robust, with fewer steps than published."""
    import pyautoattack

    norm = "Linf" if isinstance(budget, Linf) else "L2"
    attack = pyautoattack.AutoAttack(model, norm=norm, eps=budget.radius, version=version, seed=0)
    attack.verbose = False
    for part in (attack.apgd, attack.apgd_targeted, attack.fab):
        part.n_iter = STEPS
    attack.square.n_queries = QUERIES
    attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = TARGETS

    def robust(x, y):
        adversarial = attack.run_standard_evaluation(x, y, batch_size=len(x))[0]
        with torch.no_grad():
            return model(adversarial).argmax(1) == y

    return robust


@pytest.mark.parametrize(
    ("variant", "budget"), [("standard", Linf("2/255")), ("standard", L2(0.15)), ("plus", L2(0.15))], ids=str
)
def test_the_images_left_robust_are_those_of_the_authors_package(model, images, variant, budget):
    x, y = (part[:64] for part in images)
    ours = ~AutoAttack(budget, variant, STEPS, TARGETS, QUERIES).outcome(model, x, y).success
    theirs = reference(model, budget, variant)(x, y)
    assert 5 < int(theirs.sum()) < 59  # a comparison at 0 or 1 would show nothing
    assert int((ours & ~theirs).sum()) <= 1
    assert int((theirs & ~ours).sum()) <= 2


class Noisy(nn.Module):
    """A network whose predictions are random."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x + 0.05 * torch.randn_like(x))


def test_a_random_model_is_broken_as_by_the_authors_package(model, images):
    x, y = (part[:64] for part in images)
    noisy, budget = Noisy(model), Linf("3/255")
    torch.manual_seed(0)
    ours = AutoAttack(budget, "rand", STEPS).outcome(noisy, x, y)
    import pyautoattack

    attack = pyautoattack.AutoAttack(noisy, norm="Linf", eps=budget.radius, version="rand", seed=0)
    attack.verbose, attack.apgd.n_iter = False, STEPS
    theirs = attack.run_standard_evaluation(x, y, batch_size=len(x))[0]

    @torch.no_grad()
    def expected(images):
        return (sum(noisy(images).softmax(1) for _ in range(200)).argmax(1) == y).sum()

    assert 5 < int(expected(theirs)) < 59
    assert int(expected(ours.x)) <= int(expected(theirs)) + 2
    assert abs(int(expected(ours.x)) - int((~ours.success).sum())) <= 3  # it counts no lucky sample


def test_the_mean_gradient_attacks_a_random_model_better_than_one_sample(model, images):
    x, y = (part[:64] for part in images)

    class VeryNoisy(nn.Module):
        def forward(self, x):
            return model(x + 0.3 * torch.randn_like(x))

    torch.manual_seed(0)
    logits = {}
    for samples in (1, 20):
        adversarial = APGD(Linf("4/255"), 20, samples=samples)(VeryNoisy(), x, y)
        with torch.no_grad():
            mean = sum(VeryNoisy()(adversarial).softmax(1) for _ in range(300)) / 300
        logits[samples] = float(mean.gather(1, y[:, None]).mean())
    assert logits[20] < logits[1]


def test_each_attack_gets_the_images_that_are_left_as_one_set(model, images, monkeypatch):
    x, y = images
    sizes = []
    run = Square.run

    def counted(self, task):
        sizes.append(len(task.x))
        return run(self, task)

    monkeypatch.setattr(Square, "run", counted)
    outcome = AutoAttack(Linf("2/255"), steps=5, targets=1, queries=2).outcome(model, x, y)
    left = sum(sizes)
    assert int((~outcome.success).sum()) <= left < len(x)
    assert len(sizes) == -(-left // (32 * torch.get_num_threads()))


def test_the_published_versions_are_made_of_the_published_attacks():
    names = {v: [type(part).__name__ for part in AutoAttack(variant=v).parts()] for v in auto.VARIANTS}
    assert names["standard"] == ["APGD", "TargetedAPGD", "FAB", "Square"]
    assert names["plus"] == ["APGD", "APGD", "FAB", "Square", "TargetedAPGD", "FAB"]
    assert names["rand"] == ["APGD", "APGD"]
    with pytest.raises(BadInput, match="one of standard, plus, rand, found 'custom'"):
        AutoAttack(variant="custom")


def test_its_name_says_what_differs_from_the_published_version():
    assert str(AutoAttack()) == "AutoAttack standard, l_inf 8/255, early stopping"
    assert str(AutoAttack(L2(0.5), "plus", steps=5)) == "AutoAttack plus, l_2 0.5, early stopping, steps=5"


def test_square_halves_its_squares_at_the_published_queries():
    x = torch.zeros(1, 3, 32, 32)
    sides = [Square(queries=5000, rescale=False)._side(query, x) for query in (1, 10, 11, 51, 201, 4001)]
    assert sides == [round((0.8 / 2**k * 1024) ** 0.5) for k in (0, 0, 1, 2, 3, 7)]
    assert Square(queries=5000)._side(2001, x) == Square(queries=10_000)._side(4002, x)

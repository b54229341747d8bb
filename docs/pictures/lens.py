"""Pictures and tables of the lens guide, from trained CIFAR-10 networks: AdvBN images, gradients, spectra.

    python docs/pictures/lens.py --standard MODEL --robust MODEL [--other MODEL]

Writes advbn.png, gradients.png, spectra.png, tolerance.png, usefulness.png, landscape.png and branches.png
next to this file, and prints the accuracies on AdvBN images and on their reconstructions. The encoder is the
first stage of the standard network, its decoder is trained here on 5,000 images; the perturbation is found
against the standard network.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

import trimtab
from trimtab import adapt, construct, data, measure, norm, rng, train
from trimtab.data.corruptions import corrupt
from trimtab.report import pictures, plots

HERE = Path(__file__).parent
SHOWN = [3, 7, 11, 14, 19, 25, 31, 34]


def advbn_images(models: dict[str, torch.nn.Module], test: data.Images, others: data.Images) -> None:
    auto = construct.Autoencoder.of(models["standard"], "layer1", 0)
    construct.train_decoder(auto, others.subset(slice(0, 5000)), 6)
    auto.eval()
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, same in {"reconstructed": True, "AdvBN": False}.items():
            method = construct.AdvBNImages(auto, identical=same)
            place = construct.build(method, models["standard"], test, Path(folder) / f"{kind}.npz")
            made[kind] = data.load(f"npz:{place}", "test")
    print("| network | clean | reconstructed | AdvBN images | top-5 of these |\n|---|---|---|---|---|")
    for name, model in models.items():
        clean, again, moved = (measure.top_k(model, one.batches(250)) for one in (test, *made.values()))
        cells = (clean[1], again[1], moved[1], moved[5])
        print(f"| {name} | " + " | ".join(f"{100 * found.value:.1f} %" for found in cells) + " |")
    at = torch.tensor(SHOWN)
    rows = [images.take(at).x for images in (test, *made.values())]
    names = [test.classes[y] for y in test.take(at).y]
    (HERE / "advbn.png").write_bytes(pictures.grid(rows, ["original", *made], names, 3))


def gradients(standard: torch.nn.Module, robust: torch.nn.Module, test: data.Images) -> None:
    """Loss gradients of clean and noisy images, with the statistics of training and of the batch."""
    batch = test.take(torch.arange(128))
    noise = rng.normal(batch.x, 0, batch.ids.tolist(), rng.purpose("picture"))
    noisy = (batch.x + 0.25 * noise).clamp(0, 1)
    rows, names = [batch.x[SHOWN], noisy[SHOWN]], ["image", "noisy, sigma 0.25"]
    for name, model in {"standard": standard, "robust": robust}.items():
        adapted = adapt.per_batch(model)
        for words, net, x in (
            ("clean", model, batch.x),
            ("noisy", model, noisy),
            ("noisy, adapted", adapted, noisy),
        ):
            found = measure.as_picture(measure.loss_gradients(net, x, batch.y))
            rows.append(found[SHOWN])
            names.append(f"{name}: {words}")
    columns = [test.classes[y] for y in batch.y[SHOWN]]
    (HERE / "gradients.png").write_bytes(pictures.grid(rows, names, columns, 3))


def spectra(robust: torch.nn.Module, test: data.Images) -> None:
    """Where corruptions change an image, and where gradients then look."""
    batch = test.take(torch.arange(256))
    kinds = ("gaussian_noise", "shot_noise", "glass_blur", "fog", "contrast", "jpeg_compression")
    changed = {kind: corrupt(batch.x, kind, 3, seed=0, ids=batch.ids) for kind in kinds}

    def map_of(x: torch.Tensor) -> torch.Tensor:
        """Log amplitude over five powers of ten, white is most."""
        found = measure.spectrum(x).clamp(min=1e-12).log10()
        return ((found - found.max() + 2.5) / 2.5).clamp(0, 1)[None].float()

    rows = [
        torch.stack([map_of(x - batch.x) for x in changed.values()]),
        torch.stack([map_of(measure.loss_gradients(robust, x, batch.y)) for x in changed.values()]),
        torch.stack(
            [map_of(measure.loss_gradients(adapt.per_batch(robust), x, batch.y)) for x in changed.values()]
        ),
    ]
    names = ["change", "gradient", "gradient, adapted"]
    columns = [kind.replace("_", " ") for kind in kinds]
    (HERE / "spectra.png").write_bytes(pictures.grid(rows, names, columns, 4))
    for kind, x in changed.items():
        grads = [measure.loss_gradients(net, x, batch.y) for net in (robust, adapt.per_batch(robust))]
        fractions = [measure.high_frequency_fraction(z) for z in (x - batch.x, *grads)]
        print(
            f"{kind:20} high-frequency fraction of change, gradient, adapted:",
            *(f"{s:.2f}" for s in fractions),
        )


def tolerance(models: dict[str, torch.nn.Module], test: data.Images) -> None:
    batches = list(test.subset(slice(0, 1000)).batches(250))
    eps = (0.0, 0.05, 0.1, 0.2, 0.4)
    series = {}
    for name, model in models.items():
        for attack in ("sign step (APART)", "random signs"):
            rows = measure.tolerance(norm.steer(model), batches, eps, [attack])
            series[f"{name}, {attack}"] = {row["eps"]: row["accuracy"] for row in rows}
    plots.save(plots.tolerance_curve(series), HERE / "tolerance.png")


def trained(objective: dict[str, object], model: str, folder: Path, **options: object) -> train.Run:
    """Six epochs on 5,000 images of CIFAR-10, watched on 500 others."""
    told = {
        "objective": objective,
        "model": model,
        "epochs": 6,
        "batch_size": 64,
        "data.images": 5000,
    } | options
    watch = measure.usefulness(data.load("cifar10", "test").subset(slice(0, 500)))
    return train.fit(None, None, train.read_recipe("standard-laptop", told), folder, callbacks=[watch])


def trainings() -> None:
    """Short trainings: usefulness against LIGS, the landscape with and without BN, branches of Mixture BN."""
    pgd = {"kind": "pgd", "steps": 3}
    kinds = {
        "standard": ({"kind": "standard"}, "net:resnet8,width=16", {}),
        "no normalization": ({"kind": "standard"}, "net:resnet8,width=16,norm=none", {"optimizer.lr": 0.02}),
        "PGD-3": ({"kind": "adversarial", "attack": pgd}, "net:resnet8,width=16", {}),
        "Mixture BN": ({"kind": "mixture", "attack": pgd}, "net:resnet8,width=16", {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        runs = {n: trained(o, m, Path(folder) / n, **rest) for n, (o, m, rest) in kinds.items()}
        paths = {n: [(e["ligs"], e["usefulness"]) for e in run.metrics()] for n, run in runs.items()}
        models = {n: trimtab.load(f"file:{Path(folder) / n}") for n in kinds}
    plots.save(plots.usefulness_against_ligs(paths), HERE / "usefulness.png")
    batch = data.load("cifar10", "train").take(torch.arange(256))
    etas = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
    walks = {
        name: dict(
            zip((0.0, *etas), measure.landscape(models[name], batch.x, batch.y, etas).losses, strict=True)
        )
        for name in ("standard", "no normalization")
    }
    plots.save(plots.landscape_walk(walks), HERE / "landscape.png")
    layer, mixed = "net.layer1.0.bn1", models["Mixture BN"]
    branches = {name: norm.running(mixed, name)[layer].var.tolist() for name in ("main", "adv")}
    plots.save(plots.branch_statistics(branches, "running variance", layer), HERE / "branches.png")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("standard", "robust", "other"):
        options.add_argument(f"--{name}", required=name != "other")
    given = vars(options.parse_args())
    models = {name: trimtab.load(spec).eval() for name, spec in given.items() if spec}
    test = data.load("cifar10", "test").subset(slice(0, 1024))
    gradients(models["standard"], models["robust"], test)
    spectra(models["robust"], test)
    tolerance({name: models[name] for name in ("standard", "robust")}, test)
    advbn_images(models, test, data.load("cifar10", "train"))
    trainings()


if __name__ == "__main__":
    main()

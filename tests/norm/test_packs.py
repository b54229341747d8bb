"""Statistics packs: saved, refused, swapped in place, merged exactly.

Also tests norm.distance, norm.merge.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import trimtab
from nets import stack
from trimtab import norm
from trimtab.norm import pack, read_pack
from trimtab.types import BadInput


def network(seed: int = 0) -> nn.Module:
    net = stack(4, seed=seed, padding=(1, 0), stride=2, bias=False)
    for _ in range(3):
        net(torch.rand(16, 3, 9, 9))
    return trimtab.steer(net.eval())


def test_a_pack_survives_its_file_bit_for_bit(tmp_path):
    net = network()
    before = net.state_dict()
    norm.save_pack(net, tmp_path / "clean.safetensors", provenance={"images": "clean"})
    kept = {name: value.clone() for name, value in before.items()}
    with torch.no_grad():
        for name in norm.layers(net):
            net.get_submodule(name).running_mean.add_(1)
            net.get_submodule(name).weight.mul_(2)
    norm.load_pack(net, tmp_path / "clean.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in net.state_dict().items())
    assert read_pack(tmp_path / "clean.safetensors").provenance == {"images": "clean"}
    assert (tmp_path / "clean.safetensors").stat().st_size < 4096


def test_loading_a_pack_reallocates_nothing():
    net, other = network(), network()
    addresses = {name: value.data_ptr() for name, value in net.state_dict().items()}
    norm.load_pack(net, norm.gather(other, [torch.rand(8, 3, 9, 9)]))
    assert addresses == {name: value.data_ptr() for name, value in net.state_dict().items()}


def test_a_compiled_model_is_not_compiled_again_after_a_swap():
    net, x = network(), torch.rand(8, 3, 9, 9)
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    compiled = torch.compile(net, backend=backend)
    with torch.no_grad():
        before = compiled(x)
        count = len(compilations)
        norm.load_pack(net, norm.gather(net, [x + 1]))
        after = compiled(x)
        torch.testing.assert_close(after, net(x))
    assert len(compilations) == count >= 1
    assert not torch.allclose(before, after)


def test_a_pack_of_another_architecture_is_refused_by_the_layer():
    made = pack(network())
    wide = nn.Sequential(nn.Conv2d(3, 7, 1), nn.BatchNorm2d(7))
    with pytest.raises(BadInput, match="another architecture: 1 has 7 channels here, 6 in the pack"):
        norm.load_pack(trimtab.steer(wide), made)


def test_a_pack_for_other_weights_needs_force():
    net, other = network(0), network(1)
    made = pack(other)
    with pytest.raises(BadInput, match="other weights"):
        norm.load_pack(net, made)
    norm.load_pack(net, made, force=True)
    assert torch.equal(norm.layers(net)["1"].running_mean, norm.layers(other)["1"].running_mean)


def test_a_file_that_is_no_pack_is_named(tmp_path):
    (tmp_path / "page.safetensors").write_text("<html>")
    for place, words in (("page.safetensors", "is not a statistics pack"), ("none", "there is no pack")):
        with pytest.raises(BadInput, match=words):
            read_pack(tmp_path / place)


def test_a_pack_goes_into_a_branch_and_leaves_main_alone():
    net = network()
    trimtab.add_branch(net, "fog")
    main = norm.running(net, "main")
    fog = norm.gather(net, [torch.rand(32, 3, 9, 9) * 0.2 + 0.7])
    norm.load_pack(net, fog, branch="fog")
    for name, now in norm.running(net, "fog").items():
        assert torch.equal(now.mean, fog.layers[name].mean)
    assert all(torch.equal(main[name].mean, now.mean) for name, now in norm.running(net, "main").items())


def test_gathering_leaves_the_model_as_it_was():
    net = network().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    norm.gather(net, [torch.rand(8, 3, 9, 9)])
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_gathered_statistics_are_those_of_numpy_over_all_elements():
    net, batches = network(), [torch.rand(5, 3, 9, 9), torch.rand(11, 3, 9, 9)]
    inputs = net[0](torch.cat(batches)).detach().transpose(0, 1).flatten(1).double().numpy()  # (C, N H W)
    first = norm.gather(net, batches).layers["1"]
    np.testing.assert_allclose(first.mean, inputs.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first.var, inputs.var(1, ddof=1), rtol=1e-5)
    assert first.elements == 16 * 81


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_merged_shards_equal_the_whole_in_all_layers_for_any_split(sizes, seed):
    net = network()
    x = torch.rand(sum(sizes), 3, 9, 9, generator=torch.Generator().manual_seed(seed))
    x = x + torch.linspace(0, 2, len(x)).view(-1, 1, 1, 1)  # shards that differ
    whole = norm.gather(net, [x], source="running")
    merged = norm.merge([norm.gather(net, [part], source="running") for part in x.split(sizes)])
    for name, layer in whole.layers.items():
        scale = layer.var.sqrt().max()
        torch.testing.assert_close(merged.layers[name].mean, layer.mean, rtol=1e-6, atol=float(1e-6 * scale))
        torch.testing.assert_close(merged.layers[name].var, layer.var, rtol=1e-6, atol=float(1e-6 * scale**2))
        assert merged.layers[name].elements == layer.elements


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(2, 9), min_size=2, max_size=6), cut=st.integers(1, 5))
def test_packs_of_the_same_batches_merge_exactly_and_fit_together(sizes, cut):
    """What recalibrating on all batches gives, wherever each of them was gathered."""
    net = network()
    x = torch.rand(sum(sizes), 3, 9, 9) + torch.linspace(0, 2, sum(sizes)).view(-1, 1, 1, 1)
    batches = list(x.split(sizes))
    merged = norm.merge([norm.gather(net, part) for part in (batches[:cut], batches[cut:]) if part])
    norm.recalibrate(net, batches)
    for name, now in norm.running(net).items():
        scale = now.var.sqrt().max()
        torch.testing.assert_close(merged.layers[name].mean, now.mean, rtol=1e-6, atol=float(1e-6 * scale))
        torch.testing.assert_close(merged.layers[name].var, now.var, rtol=1e-6, atol=float(1e-6 * scale**2))


def test_running_packs_of_any_parts_reach_a_fixed_point_in_as_many_rounds_as_layers():
    """Layer k receives its final inputs once the k - 1 before it hold theirs."""
    net, x = network(), torch.rand(40, 3, 9, 9) * 0.3

    def moved():
        before = norm.running(net)
        norm.load_pack(net, norm.merge([norm.gather(net, [p], source="running") for p in x.split(7)]))
        return [not torch.allclose(m.mean, before[n].mean, rtol=1e-4) for n, m in norm.running(net).items()]

    assert [moved() for _ in range(3)] == [[True, True], [False, True], [False, False]]


def test_a_pack_of_channels_last_images_is_exact():
    """torch's kernel sums such a batch in float32 and loses four digits (oracle: float64)."""
    net = trimtab.steer(nn.Sequential(nn.BatchNorm2d(3)).eval())
    x = torch.rand(64, 3, 96, 96).contiguous(memory_format=torch.channels_last) + 1
    found = norm.gather(net, [x], source="running").layers["0"]
    wide = x.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(found.mean.double(), wide.mean(1), rtol=1e-7, atol=0)
    torch.testing.assert_close(found.var.double(), wide.var(1), rtol=1e-6, atol=0)


def test_averaging_variances_is_wrong_where_shards_differ_and_merging_is_not():
    net = network()
    shards = [torch.rand(16, 3, 9, 9), torch.rand(16, 3, 9, 9) + 2]
    packs = [norm.gather(net, [shard]) for shard in shards]
    whole = norm.gather(net, [torch.cat(shards)]).layers["1"].var  # the first layer's inputs are the same
    merged = norm.merge(packs).layers["1"].var
    averaged = (packs[0].layers["1"].var + packs[1].layers["1"].var) / 2
    assert float(((merged - whole) / whole).abs().max()) < 1e-5
    assert float(((averaged - whole) / whole).abs().max()) > 0.3


def test_merging_models_without_counts_asks_for_them():
    models = [network(0), network(0)]
    with pytest.raises(BadInput, match="give counts="):
        norm.merge(models)
    merged = norm.merge(models, counts=[100, 300])
    np.testing.assert_allclose(merged.layers["1"].mean, norm.layers(models[0])["1"].running_mean, rtol=1e-6)


def test_merged_clients_average_gamma_by_count_and_belong_to_no_network():
    clients = [network(0), network(1)]
    merged = norm.merge(clients, counts=[1, 3])
    gammas = [norm.layers(client)["1"].weight.detach() for client in clients]
    torch.testing.assert_close(merged.layers["1"].weight, 0.25 * gammas[0] + 0.75 * gammas[1])
    with pytest.raises(BadInput, match="other weights"):
        norm.load_pack(clients[0], merged)


def test_recalibrating_chosen_layers_leaves_the_others():
    net = network()
    before = norm.running(net)
    norm.recalibrate(net, [torch.rand(32, 3, 9, 9) * 3], only=["4"])
    after = norm.running(net)
    assert torch.equal(before["1"].mean, after["1"].mean)
    assert not torch.allclose(before["4"].mean, after["4"].mean)
    with pytest.raises(BadInput, match="no steered layer 'nine'"):
        norm.recalibrate(net, [torch.rand(4, 3, 9, 9)], only=["nine"])


def test_a_forward_function_lets_any_task_be_recalibrated():
    class Boxes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()[:6]

        def forward(self, images, targets):
            return {"scores": self.body(torch.stack(images)), "targets": targets}

    net = trimtab.steer(Boxes())
    batch = {"images": [torch.rand(3, 9, 9) for _ in range(4)], "targets": [1, 2, 3, 4]}
    norm.recalibrate(net, [batch], forward=lambda model, item: model(**item))
    inputs = net.body[0](torch.stack(batch["images"])).detach().transpose(0, 1).flatten(1)
    torch.testing.assert_close(norm.layers(net)["body.1"].running_mean, inputs.mean(1))


def test_a_changed_weight_is_noticed_after_the_pack_was_loaded_once():
    net = network()
    made = norm.gather(net, [torch.rand(8, 3, 9, 9)])
    norm.load_pack(net, made)
    with torch.no_grad():
        net[0].weight.add_(1)
    with pytest.raises(BadInput, match="other weights"):
        norm.load_pack(net, made)


def test_compared_packs_differ_by_what_was_planted():
    net = network()
    before = norm.pack(net)
    with torch.no_grad():
        layer = norm.layers(net)["4"]
        layer.running_mean.add_(2 * (layer.running_var + 1e-5).sqrt())
        layer.bias.add_(0.5)
    rows = {row.layer: row for row in norm.compare(norm.pack(net), before)}
    assert rows["1"][1:] == pytest.approx((0, 1, 0))
    assert rows["4"].mean_shift == pytest.approx(2, rel=1e-5)
    assert rows["4"].affine_change == pytest.approx(0.5, rel=1e-5)


def test_the_divergence_is_torchs_between_normal_distributions():
    torch.manual_seed(0)
    mean, var, mean0, var0 = torch.randn(5, 4), torch.rand(5, 4) + 0.1, torch.randn(4), torch.rand(4) + 0.1
    normal = torch.distributions.Normal
    kl = torch.distributions.kl_divergence(normal(mean, var.sqrt()), normal(mean0, var0.sqrt())).mean(1)
    torch.testing.assert_close(norm.divergence(mean, var, mean0, var0), kl, rtol=1e-3, atol=1e-3)


def test_the_reported_error_of_averaging_is_that_of_numpy():
    net = network()
    shards = [torch.rand(16, 3, 9, 9), torch.rand(8, 3, 9, 9) + 2]
    packs = [norm.gather(net, [shard]) for shard in shards]
    merged = norm.merge(packs)
    error = norm.averaging_error(packs, merged)["1"]
    inputs = [net[0](shard).detach().double().transpose(0, 1).flatten(1).numpy() for shard in shards]
    whole = np.concatenate(inputs, 1).var(1, ddof=1)
    average = (16 * inputs[0].var(1, ddof=1) + 8 * inputs[1].var(1, ddof=1)) / 24
    assert error == pytest.approx(np.abs((average - whole) / whole).max(), rel=1e-4)

"""ResNets: the published sizes, and arithmetic that can be checked by hand."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from headtail.encoders.resnet import Block, Convolution, ResNet, WideBlock, narrowed
from headtail.errors import HeadtailError


def images(n: int, size: int = 32) -> torch.Tensor:
    return torch.randint(256, (n, 3, size, size), dtype=torch.uint8)


# He et al. (2016), table 6: 0.27M, 0.46M, 0.85M with a layer of 650 weights for ten labels.
# ResNet-50: 25,557,032 less 2,049,000.
@pytest.mark.parametrize(
    ("depth", "weights"),
    [(20, 269_722 - 650), (32, 464_154 - 650), (56, 853_018 - 650), (50, 23_508_032)],
)
def test_a_network_has_as_many_weights_and_layers_as_published(depth, weights):
    encoder = ResNet(depth)
    assert sum(p.numel() for p in encoder.parameters()) == weights
    main = [
        name
        for name, module in encoder.named_modules()
        if isinstance(module, Convolution) and "project" not in name
    ]
    assert len(main) == depth - 1  # and the label head


@pytest.mark.parametrize(
    ("depth", "size", "places", "dim"), [(20, 32, 8, 64), (20, 30, 8, 64), (50, 64, 2, 2048)]
)
def test_the_last_block_sees_the_size_it_should(depth, size, places, dim):
    encoder = ResNet(depth)
    seen = []
    encoder.blocks[-1].register_forward_hook(lambda _, __, out: seen.append(out.shape))
    assert encoder(images(2, size)).shape == (2, dim)
    assert seen == [(2, dim, places, places)]


def test_every_weight_gets_a_gradient():
    for depth in (20, 50):
        encoder = ResNet(depth, augment=False)
        encoder(images(4)).square().sum().backward()
        dead = [
            name
            for name, p in encoder.named_parameters()
            if p.grad is None or not p.grad.isfinite().all()
        ]
        assert not dead
        if depth == 20:
            assert all(bool(p.grad.any()) for p in encoder.parameters() if p.grad is not None)


def test_a_shortcut_without_parameters_keeps_every_other_pixel_and_adds_channels_of_zeros():
    block = Block(2, 4, stride=2)
    with torch.no_grad():
        block.norm2.weight.zero_()
    x = torch.rand(3, 2, 6, 6)
    out = block(x, iter([block.conv1.weight, block.conv2.weight]))
    assert torch.equal(out[:, :2], x[:, :, ::2, ::2])
    assert not out[:, 2:].any()


def test_a_wide_block_begins_as_the_identity_and_strides_in_its_middle():
    block = WideBlock(16, 4, stride=1)
    x = torch.rand(2, 16, 5, 5)
    weights = [block.conv1.weight, block.conv2.weight, block.conv3.weight]
    assert torch.equal(block(x, iter(weights)), x)
    assert [
        WideBlock(16, 4, stride=2).get_submodule(name).stride
        for name in ("conv1", "conv2", "conv3", "project")
    ] == [
        1,
        2,
        1,
        2,
    ]


def test_a_small_network_is_what_its_definition_says():
    encoder = ResNet(20, augment=False).eval()
    given = images(3)
    weights = dict(encoder.named_parameters())
    x = (given - 128.0) / 64

    def layer(x, conv, norm, stride=1):
        x = F.conv2d(x, weights[f"{conv}.weight"], stride=stride, padding=1)
        return F.batch_norm(
            x,
            torch.zeros(x.shape[1]),
            torch.ones(x.shape[1]),
            weights[f"{norm}.weight"],
            weights[f"{norm}.bias"],
        )

    x = layer(x, "stem.conv", "stem.norm").relu()
    for i in range(9):
        stride = 2 if i in (3, 6) else 1
        y = layer(x, f"blocks.{i}.conv1", f"blocks.{i}.norm1", stride).relu()
        y = layer(y, f"blocks.{i}.conv2", f"blocks.{i}.norm2")
        x = x if stride == 1 else F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, x.shape[1]))
        x = (x + y).relu()
    assert torch.allclose(encoder(given), x.mean((2, 3)), rtol=1e-4, atol=1e-4)


def test_narrow_weights_are_rounded_once_and_their_gradients_come_back_wide():
    weights = [
        torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last).requires_grad_(),
        torch.randn(2, 5).requires_grad_(),
    ]
    short = narrowed(weights)
    assert all(torch.equal(a, b.bfloat16()) for a, b in zip(short, weights, strict=True))
    sum((s.float() * (i + 2)).sum() for i, s in enumerate(short)).backward()
    for i, weight in enumerate(weights):
        assert weight.grad is not None
        assert weight.grad.dtype == torch.float32
        assert weight.grad.stride() == weight.stride()
        assert torch.equal(weight.grad, torch.full_like(weight, i + 2))


class NarrowResNet(ResNet):
    def dtype_on(self, device):
        return torch.bfloat16


def test_bfloat16_changes_hidden_states_and_gradients_by_its_rounding_only():
    start = ResNet(20, augment=False)
    given = images(16)
    found = []
    direction = torch.randn(16, 64)
    for kind in (ResNet, NarrowResNet):
        encoder = kind(20, augment=False)
        encoder.load_state_dict(start.state_dict())
        hidden = encoder(given)
        assert hidden.dtype == torch.float32
        (hidden * direction).sum().backward()
        found.append(
            (hidden.detach(), encoder.stem.conv.weight.grad, encoder.blocks[-1].norm2.running_var)
        )
    for wide, narrow in zip(*found, strict=True):
        assert not torch.equal(wide, narrow)
        assert F.cosine_similarity(wide.flatten(), narrow.flatten(), dim=0) > 0.95


def test_hidden_states_are_dropped_in_training_only():
    encoder = ResNet(20, augment=False, dropout=0.5)
    assert (encoder(images(8)) == 0).float().mean() > 0.3
    assert (encoder.eval()(images(8)) == 0).float().mean() < 0.3


def test_a_network_can_be_copied():
    encoder = ResNet(20).eval()
    given = images(2)
    assert torch.equal(copy.deepcopy(encoder)(given), encoder(given))


def test_another_depth_is_refused_with_those_there_are():
    with pytest.raises(HeadtailError, match="`depth` must be one of 20, 32, 56, 50, but got 18"):
        ResNet(18)

"""Images made ready for a network: normalised by what was measured, moved and mirrored as
documented.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from headtail.core.targets import Ragged
from headtail.data.bag import Bag
from headtail.data.points import Points
from headtail.encoders.prepare_images import PAD, PLACES, PrepareImages, moved
from headtail.errors import HeadtailError


def images(n: int, height: int = 6, width: int = 7) -> torch.Tensor:
    return torch.randint(256, (n, 3, height, width), dtype=torch.uint8)


def shifted(given: torch.Tensor) -> torch.Tensor:
    return moved(given, torch.randint(2 * PLACES, (len(given),)))


def points(features: torch.Tensor | Bag) -> Points:
    return Points(features, Ragged.from_lists([[0]] * len(features)), 1)


def test_mean_and_deviation_are_those_of_all_pixels_of_a_channel():
    given = images(20) // torch.tensor([1, 2, 5], dtype=torch.uint8)[:, None, None]
    prepare = PrepareImages()
    prepare.measure_channels(points(given), at_once=300)  # several blocks
    by_channel = given.double().transpose(0, 1).reshape(3, -1)
    assert torch.allclose(prepare.mean.double(), by_channel.mean(1))
    assert torch.allclose(prepare.std.double(), by_channel.std(1, correction=0))


def test_a_channel_of_one_value_is_not_divided_by_zero():
    prepare = PrepareImages(augment=False)
    prepare.measure_channels(points(torch.full((4, 3, 5, 5), 9, dtype=torch.uint8)))
    assert prepare(torch.full((1, 3, 5, 5), 9, dtype=torch.uint8)).abs().max() < 1e-6


def test_every_moved_image_is_a_part_of_the_padded_one_or_its_mirror_image():
    given = images(400)
    padded = F.pad(given, (PAD, PAD, PAD, PAD))
    seen = set()
    for one, around in zip(shifted(given), padded, strict=True):
        places = [
            (down, right, mirrored)
            for down in range(2 * PAD + 1)
            for right in range(2 * PAD + 1)
            for mirrored in (False, True)
            if torch.equal(
                one.flip(2) if mirrored else one, around[:, down : down + 6, right : right + 7]
            )
        ]
        assert places
        seen.update(places)
    assert len(seen) > 130  # of 81 places, mirrored or not: 400 images miss about 14
    assert {down for down, _, _ in seen} == {right for _, right, _ in seen} == set(range(9))


def test_about_half_of_the_images_are_mirrored():
    column = torch.arange(40, dtype=torch.uint8).expand(2000, 3, 9, 40)
    middle = shifted(column)[:, 0, 4].int()
    falling = middle[:, 15] > middle[:, 25]
    assert 0.45 < falling.float().mean() < 0.55


def test_images_are_moved_in_training_only_and_by_the_seed():
    prepare = PrepareImages()
    given = images(30)
    torch.manual_seed(3)
    one = prepare(given)
    torch.manual_seed(3)
    assert torch.equal(one, prepare(given))
    assert not torch.equal(one, prepare(given))
    still = (given - 128.0) / 64
    assert torch.allclose(prepare.eval()(given), still, atol=1e-5)
    assert torch.allclose(PrepareImages(augment=False)(given), still, atol=1e-5)


def test_other_shapes_than_those_of_images_are_refused():
    with pytest.raises(
        HeadtailError, match=r"uint8 of shape .* but got torch.float32 of shape \[2, 3, 4, 4\]"
    ):
        PrepareImages()(torch.zeros(2, 3, 4, 4))
    with pytest.raises(HeadtailError, match=r"but got torch.uint8 of shape \[2, 48\]"):
        PrepareImages()(torch.zeros(2, 48, dtype=torch.uint8))
    bag = Bag(torch.tensor([0, 1]), torch.zeros(1).int(), torch.ones(1), 3)
    with pytest.raises(HeadtailError, match="but got sparse features"):
        PrepareImages().measure_channels(points(bag))

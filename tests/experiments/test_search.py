"""The search of rate and epochs ends inside what it tried, whatever the loss looks like."""

from __future__ import annotations

import math

import pytest
from search import Plan, chosen, edges, next_tries

PLAN = Plan((0.01, 0.02, 0.04, 0.08, 0.16), epochs=4, longest=32)


def searched(loss, plan=PLAN):
    tried = {}
    for _ in range(50):
        tries = next_tries(plan, tried)
        if not tries:
            return tried
        assert not set(tries) & set(tried)
        tried |= {one: loss(*one) for one in tries}
    raise AssertionError("the search does not end")


def bowl(rate, epochs, best_rate=0.04, best_epochs=8):
    return 1 + math.log2(rate / best_rate) ** 2 / 10 + math.log2(epochs / best_epochs) ** 2 / 10


def test_the_minimum_of_a_bowl_is_found_inside():
    tried = searched(bowl)
    assert chosen(PLAN, tried) == (0.04, 8)
    assert edges(PLAN, tried) == []


@pytest.mark.parametrize("best", [0.005, 0.32])
def test_the_grid_grows_where_its_best_rate_is_at_an_end(best):
    tried = searched(lambda rate, epochs: bowl(rate, epochs, best, 4))
    assert chosen(PLAN, tried) == (best, 4)
    assert edges(PLAN, tried) == []


def test_an_edge_that_cannot_be_passed_is_reported():
    tried = searched(lambda rate, epochs: bowl(rate, epochs, 10.0, 100))
    assert chosen(PLAN, tried) == (5.12, 32)  # three doublings, one more rate each
    assert edges(PLAN, tried) == ["rate", "epochs"]


def test_a_longer_run_must_pay():
    tried = searched(lambda rate, epochs: bowl(rate, 8) + (epochs < 4) - 1e-5 * epochs)
    assert chosen(PLAN, tried) == (0.04, 4)
    assert {epochs for _, epochs in tried} == {2, 4, 8}
    assert edges(PLAN, tried) == []


@pytest.mark.parametrize("best", [1, 2, 4])
def test_shorter_runs_are_tried_where_longer_ones_do_not_pay(best):
    tried = searched(lambda rate, epochs: bowl(rate, epochs, 0.02, best))
    assert chosen(PLAN, tried) == (0.02, best)
    assert min(epochs for _, epochs in tried) == max(1, best // 2)
    assert edges(PLAN, tried) == (["epochs"] if best == 1 else [])


def test_a_length_that_is_given_is_neither_searched_nor_at_an_edge():
    plan = Plan(PLAN.rates, epochs=8, longest=8, shortest=8)
    tried = searched(lambda rate, epochs: bowl(rate, epochs, 0.02, 1), plan)
    assert {epochs for _, epochs in tried} == {8}
    assert edges(plan, tried) == []


def test_rates_that_diverge_are_not_chosen():
    tried = searched(lambda rate, epochs: math.inf if rate > 0.03 else bowl(rate, epochs, 1, 4))
    assert chosen(PLAN, tried) == (0.02, 4)
    assert edges(PLAN, tried) == []


def test_a_search_in_which_everything_diverges_ends_without_a_choice():
    tried = searched(lambda *_: math.inf)
    assert chosen(PLAN, tried) is None
    assert min(rate for rate, _ in tried) == 0.0025


def test_every_scheme_tries_the_same_number_unless_its_best_is_at_an_edge():
    assert len(searched(lambda r, e: bowl(r, e, 0.02, 4))) == len(
        searched(lambda r, e: bowl(r, e, 0.08, 4))
    )

"""A cluster of several nodes, here on one machine: one of them is lost during a comparison."""

from __future__ import annotations

import pytest
from ray.cluster_utils import Cluster

from headtail.comparison.compare import Execution
from tests.comparison.test_ray import ONE_THREAD, At, compared, files

pytestmark = pytest.mark.long


@pytest.fixture
def nodes(monkeypatch):
    """A cluster whose head has no cores, which `RAY_ADDRESS` names, and its two other nodes."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        others = [made.add_node(num_cpus=1) for _ in range(2)]
        made.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", made.address)
        yield made, others
    finally:
        made.shutdown()


def test_cells_lost_with_their_node_are_run_again(nodes, tmp_path):
    made, others = nodes
    compared(tmp_path / "plain", Execution(**ONE_THREAD))

    def lose_a_node():
        made.remove_node(others[0], allow_graceful=False)
        return True

    at = At(lose_a_node)
    compared(tmp_path / "ray", Execution(engine="ray", callbacks=lambda _: [at]))
    assert at.done
    assert files(tmp_path / "ray") == files(tmp_path / "plain")

"""The random state of all ranks.

The generator of each rank on the CPU decides the seed of its own draws, and that of rank 0 what
ranks draw together. With as many ranks as before, every rank continues with its own state; with
others, each of them begins with a state that follows from the saved ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headtail.collectives.ranks import Ranks
from headtail.distributed.checkpoint_contents import Contents
from headtail.files.checksums import new_checksum

_CPU = torch.device("cpu")


def random_state(ranks: Ranks, device: torch.device) -> dict[str, Tensor]:
    """`[ranks, n]` states of the generators of all ranks. Every rank must call it."""
    states = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random.cuda"] = torch.cuda.get_rng_state(device)
    return {
        name: torch.tensor(ranks.numbers(state.view(torch.int64).tolist(), _CPU))
        for name, state in states.items()
    }


def room_for_states(contents: Contents) -> dict[str, Tensor]:
    """Tensors to load the states of all ranks into; the sizes of others are refused."""
    wanted = {"random.cpu": len(torch.get_rng_state()) // 8, "random.cuda": 2}
    room = {}
    for name, numbers in wanted.items():
        if name == "random.cpu" or name in contents.tensors:
            saved = contents.tensors[name].whole
            if saved.shape != (contents.description["ranks"], numbers) or not saved.size:
                raise TypeError(f"`{name}` has the shape {list(saved.shape)}")
            room[name] = torch.empty(saved.shape, dtype=torch.int64)
    return room


def restore_random_state(states: dict[str, Tensor], ranks: Ranks, device: torch.device) -> None:
    """Let this rank continue, or begin, with its state."""
    saved = states["random.cpu"]
    torch.set_rng_state(_of_rank(saved, ranks.rank, _CPU))
    if device.type == "cuda" and "random.cuda" in states:
        state = _of_rank(states["random.cuda"], ranks.rank, device)
        torch.cuda.set_rng_state(state, device)


def _of_rank(states: Tensor, rank: int, device: torch.device) -> Tensor:
    """The state that the rank had, or one that follows from the first rank's and its number."""
    if rank < len(states):
        # A copy: torch reads the state from where its memory begins.
        return states[rank].clone().view(torch.uint8)
    checksum = new_checksum()
    checksum.update(states[0].numpy().tobytes())
    seed = (checksum.intdigest() + rank) % 2**63
    return torch.Generator(device).manual_seed(seed).get_state()

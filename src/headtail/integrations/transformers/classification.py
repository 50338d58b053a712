"""Sequence classification with very many labels."""

from __future__ import annotations

import inspect
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headtail.errors import HeadtailError, check_choice
from headtail.integrations.transformers.with_head import WithHead, states_of


class HeadtailForSequenceClassification(WithHead):
    """Texts (or images, or sounds) with one of very many labels.

    `labels` are `[b]` ids, or `[b, k]` ids padded with −100 for several labels per text. In
    evaluation `top_labels` is `[b, top]`: the scores of all labels are never held together.

    >>> from headtail import Labels
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(vocab_size=99, hidden_size=8, intermediate_size=8)
    >>> encoder = BertModel(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))
    >>> labels = Labels.zipf(50_000)
    >>> model = HeadtailForSequenceClassification.of(encoder, labels, "frequency:tail@64")
    >>> tokens, classes = torch.randint(99, (2, 5)), torch.tensor([3, 41_000])
    >>> model(tokens, labels=classes).loss.shape
    torch.Size([])
    >>> model.eval()(tokens).top_labels.shape
    torch.Size([2, 10])
    """

    def fitted(self, encoder: PreTrainedModel) -> PreTrainedModel:
        """Without a pooler that nothing would train."""
        pooling = self.config.pooling
        check_choice("pooling", pooling, ("mean", "first", "last", "pooler"))
        optional = "add_pooling_layer" in inspect.signature(type(encoder).__init__).parameters
        if pooling != "pooler" and optional:
            cast(Any, encoder).pooler = None
        return encoder

    def hidden(self, **inputs: Any) -> Tensor:
        """`[b, d]` one hidden state per text."""
        outputs = self.encoder(**inputs)
        if self.config.pooling == "pooler":
            if getattr(outputs, "pooler_output", None) is None:
                raise HeadtailError(
                    f"`{type(self.encoder).__name__}` has no pooler. Write `pooling='mean'`."
                )
            return outputs.pooler_output.flatten(1)
        states = states_of(outputs, self.encoder)
        if self.config.pooling == "first":
            return states[:, 0]
        mask = inputs.get("attention_mask")
        mask = torch.ones_like(states[..., 0]) if mask is None else mask.to(states.dtype)
        if self.config.pooling == "last":
            position = torch.arange(mask.shape[1], device=mask.device)
            last = (mask * position).argmax(1)
            return states[torch.arange(len(states), device=mask.device), last]
        total = (states * mask[..., None]).sum(1)
        return total / mask.sum(1, keepdim=True).clamp(min=1)

    def aligned(self, hidden: Tensor, labels: Tensor, inputs: dict[str, Any]) -> tuple[Any, Any]:
        """Labels of each text."""
        if labels.dim() not in (1, 2) or len(labels) != len(hidden) or labels.dtype == torch.bool:
            raise HeadtailError(
                f"`labels` must be ids of shape [{len(hidden)}], or [{len(hidden)}, k] padded with "
                f"−100, but got {labels.dtype} of shape {list(labels.shape)}."
            )
        return hidden, labels

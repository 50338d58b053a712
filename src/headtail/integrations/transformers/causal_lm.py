"""Causal language models whose vocabulary is a label table."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headtail.core.labels import Labels
from headtail.errors import HeadtailError, check_kind
from headtail.head import LabelHead
from headtail.integrations.transformers.with_head import M, WithHead, states_of


class HeadtailForCausalLM(WithHead):
    """A causal language model whose vocabulary is a label table, trained on sampled negatives.

    `labels` are `[B, T]` token ids as in transformers: the model shifts them, and −100 is ignored.
    In evaluation `top_labels` is `[B, T, top]`: the best tokens after each position.

    With `tied=True` inputs and answers share the head's table. Without it, a head on a model such
    as `AutoModelForCausalLM.from_pretrained(…)` starts with the weights of its output layer.
    """

    @classmethod
    def of(
        cls: type[M],
        encoder: PreTrainedModel,
        labels: Labels,
        scheme: str,
        *,
        options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> M:
        """Put a label head over the vocabulary on a model; `labels` are the counts of its tokens.

        The arguments are those of `HeadtailForSequenceClassification.of`.
        """
        check_kind("encoder", encoder, PreTrainedModel, 'AutoModel.from_pretrained("…")')
        check_kind("labels", labels, Labels, "Labels.from_targets(tokens, num_labels=…)")
        vocabulary = encoder.config.get_text_config().vocab_size
        if labels.num_labels != vocabulary:
            raise HeadtailError(
                f"`labels` has {labels.num_labels} labels, but the model {vocabulary} tokens. "
                f"Write `Labels.from_targets(tokens, num_labels={vocabulary})`."
            )
        tied = settings.get("tied", False)
        layer: Any = encoder.get_input_embeddings() if tied else encoder.get_output_embeddings()
        if layer is not None:
            settings.setdefault("dim", layer.weight.shape[1])
        model = super().of(encoder, labels, scheme, options=options, **settings)
        if layer is not None:
            with torch.no_grad():
                model.head.weight.copy_(layer.weight)
        return model

    def fitted(self, encoder: PreTrainedModel) -> PreTrainedModel:
        """With the head's table as input embeddings, where they are tied."""
        if self.config.tied:
            layer = encoder.get_input_embeddings()
            if type(layer) is not nn.Embedding or layer.weight.shape != self.head.weight.shape:
                raise HeadtailError(
                    f"The embeddings of `{type(encoder).__name__}` are not a plain table of "
                    f"{list(self.head.weight.shape)}. Write `tied=False`."
                )
            encoder.set_input_embeddings(TiedEmbedding(self.head, layer.padding_idx))
        return encoder

    def hidden(self, **inputs: Any) -> Tensor:
        """`[B, T, d]` the hidden states of all positions."""
        return states_of(self.encoder(**inputs), self.encoder)

    def aligned(self, hidden: Tensor, labels: Tensor, inputs: dict[str, Any]) -> tuple[Any, Any]:
        """The token after each position."""
        if labels.shape != hidden.shape[:2]:
            raise HeadtailError(
                f"`labels` must be token ids of shape {list(hidden.shape[:2])}, like the inputs, "
                f"but got {list(labels.shape)}."
            )
        shifted = inputs["shift_labels"]
        if shifted is not None:  # as some data collators prepare them
            return hidden, shifted
        return hidden[:, :-1], labels[:, 1:]


class TiedEmbedding(nn.Module):
    """Looks tokens up in a label head's table, which belongs to the head alone."""

    def __init__(self, head: LabelHead, padding_idx: int | None = None) -> None:
        super().__init__()
        self._head = (head,)  # not a submodule: its weights would be saved twice
        self.padding_idx = padding_idx

    @property
    def weight(self) -> nn.Parameter:
        """The table."""
        return self._head[0].weight

    def forward(self, ids: Tensor) -> Tensor:
        """The rows of these tokens, with their weight decay; padding gets no gradient."""
        rows = self._head[0].rows(ids)
        if self.padding_idx is None:
            return rows
        return torch.where((ids == self.padding_idx)[..., None], rows.detach(), rows)

"""What makes a model with a label head again, as JSON."""

from __future__ import annotations

import json
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from headtail.errors import HeadtailError, Setting, check_count, nearest

SETTINGS = frozenset({"bias", "dim", "pooling", "sparse", "tied", "top"})
"""What `of` passes on to a configuration."""


class HeadtailConfig(PreTrainedConfig):
    """What makes a model with a label head again; the counts of its labels are with the weights.

    Attributes:
        encoder: the configuration of the encoder.
        encoder_class: its class in transformers.
        dim: the size of its hidden states.
        scheme: the name of the loss, for example `"frequency:tail@512"`.
        options: keywords of the loss: `num_negatives`, `score`, `temperature`, ….
        smoothing: of the labels' prior.
        bias: whether labels have biases.
        sparse: whether the label table gets row-sparse gradients.
        pooling: how a text becomes one hidden state (classification).
        tied: whether inputs and answers share a table (language models).
        top: how many of the best labels a model returns in evaluation.
    """

    model_type = "headtail"
    # Not one of `sub_configs`: what this one does not say would overwrite what the encoder's says.

    encoder: Any = None
    encoder_class: str = ""
    dim: int = 0
    scheme: str = ""
    options: dict[str, Any] | None = None
    smoothing: float = 0.0
    bias: bool = False
    sparse: bool = True
    pooling: str = "mean"
    tied: bool = False
    top: int = 10

    def __post_init__(self, **kwargs: Any) -> None:
        """Make the encoder's configuration of what was read from JSON."""
        if isinstance(self.encoder, dict):
            self.encoder = AutoConfig.for_model(**self.encoder)
        super().__post_init__(**kwargs)


def check_settings(settings: dict[str, Any], options: dict[str, Any] | None) -> None:
    """Refuse settings that are not there, and options that a file cannot hold."""
    for name in settings.keys() - SETTINGS:
        raise HeadtailError(f"`{name}` is not a setting of this model.{nearest(name, SETTINGS)}")
    check_count("top", settings.get("top", 1))
    if (options or {}).get("reduction", "mean") != "mean":
        raise HeadtailError('`reduction` must be "mean", which trainers scale. Leave it out.')
    try:
        json.dumps(options)
    except TypeError as error:
        raise HeadtailError(
            Setting("options"), " must be numbers and strings, to be saved with the model."
        ) from error


def width_of(config: Any, settings: dict[str, Any]) -> int:
    """The size of an encoder's hidden states."""
    width = settings.get("dim") or getattr(config.get_text_config(), "hidden_size", None)
    if width is None:
        raise HeadtailError(
            f"`{type(config).__name__}` has no `hidden_size`. Write the size of the hidden states "
            "as ",
            Setting("dim"),
            ".",
        )
    return width

"""What models with a label head share: configuration, loss, answers, files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.generic import ModelOutput
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from headtail.core.labels import Labels
from headtail.core.names import saved_names
from headtail.core.targets import IGNORE_INDEX
from headtail.core.topk import TopK
from headtail.errors import HeadtailError, Setting, check_kind
from headtail.files.tensors import as_bytes
from headtail.head import LabelHead
from headtail.integrations.transformers.config import HeadtailConfig, check_settings, width_of
from headtail.schemes import scheme as build_loss

COUNTS = "labels.counts"
NAMES = "labels.names"
HUB = frozenset(
    ["cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token"]
)
"""What `from_pretrained` passes on to the Hub."""
M = TypeVar("M", bound="WithHead")


@dataclass
class HeadtailOutput(ModelOutput):
    """What a model returns.

    Attributes:
        loss: where labels are given.
        top_labels: `[…, k]` ids of the best labels, in evaluation only.
    """

    loss: Tensor | None = None
    top_labels: Tensor | None = None


class WithHead(PreTrainedModel):
    """An encoder and a label head. Make one with `of` or `from_pretrained`."""

    config_class = HeadtailConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    config: HeadtailConfig

    def __init__(
        self, config: HeadtailConfig, labels: Labels, encoder: PreTrainedModel | None = None
    ) -> None:
        super().__init__(config)
        encoder = _made_of(config) if encoder is None else encoder
        self.main_input_name = encoder.main_input_name
        self.head = LabelHead(
            labels,
            config.dim,
            build_loss(config.scheme, labels, **(config.options or {})),
            bias=config.bias,
            sparse=config.sparse,
            device=encoder.device,
            dtype=encoder.dtype,
        )
        self.encoder = self.fitted(encoder)
        self.post_init()

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
        """Put a new label head on an encoder.

        Args:
            encoder: any model of transformers with hidden states, for example
                `AutoModel.from_pretrained(…)`.
            labels: the label distribution.
            scheme: the name of the loss, for example `"frequency:tail@512"`.
            options: keywords of the loss: `num_negatives`, `score`, `temperature`, ….
            **settings: those of `HeadtailConfig`: `bias`, `sparse`, `pooling`, `tied`, `top`, and
                `dim` where the encoder's own configuration has no `hidden_size`.
        """
        check_kind("encoder", encoder, PreTrainedModel, 'AutoModel.from_pretrained("…")')
        check_kind("labels", labels, Labels, "Labels.from_counts(counts)")
        check_kind("scheme", scheme, str, "frequency:tail@512")
        check_settings(settings, options)
        body = cast(PreTrainedModel, encoder.base_model)
        config = HeadtailConfig(
            encoder=body.config,
            encoder_class=type(body).__name__,
            scheme=scheme,
            options=options,
            smoothing=labels.smoothing,
            **{"dim": width_of(body.config, settings), **settings},
        )
        return cls(config, labels, body)

    def fitted(self, encoder: PreTrainedModel) -> PreTrainedModel:
        """The encoder as this model uses it."""
        return encoder

    def init_weights(self) -> None:
        """Nothing: head and encoder have their weights already."""

    def hidden(self, **inputs: Any) -> Tensor:
        """The hidden states that labels are scored with."""
        raise NotImplementedError

    def aligned(self, hidden: Tensor, labels: Tensor, inputs: dict[str, Any]) -> tuple[Any, Any]:
        """Hidden states and the labels that they predict, checked."""
        raise NotImplementedError

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **inputs: Any,
    ) -> HeadtailOutput:
        """The loss, and in evaluation the best labels.

        Args:
            input_ids: of the encoder.
            labels: the targets.
            num_items_in_batch: of all batches whose gradients are summed up before a step.
            **inputs: of the encoder.
        """
        if input_ids is not None:
            inputs["input_ids"] = input_ids
        shifted = {"shift_labels": inputs.pop("shift_labels", None)}
        hidden = self.hidden(**inputs)
        if not torch.is_autocast_enabled(hidden.device.type):
            hidden = hidden.to(self.head.weight.dtype)  # some layers may have more digits
        loss = None
        if labels is not None:
            used, target = self.aligned(hidden, labels, shifted)
            loss = self._loss(used, target, num_items_in_batch)
        best = None if self.training else self._best(hidden, self.config.top).indices
        return HeadtailOutput(loss=loss, top_labels=best)

    def _loss(self, hidden: Tensor, target: Tensor, num_items: Tensor | int | None) -> Tensor:
        """The mean over these targets, or their part of the mean over so many items."""
        if num_items is None:
            return self.head(hidden, target)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            # A mean would be one over all ranks, which says nothing about this rank's sum.
            return self.head.capture(False)(hidden, target, reduction="sum") / num_items
        # Without options that change, a head runs as a CUDA graph.
        return self.head(hidden, target) * (target.ne(IGNORE_INDEX).sum() / num_items)

    def topk(self, k: int, **inputs: Any) -> TopK:
        """The exact k best labels and their scores; `inputs` are those of the encoder."""
        with torch.no_grad():
            return self._best(self.hidden(**inputs), k)

    def _best(self, hidden: Tensor, k: int) -> TopK:
        best = self.head.topk(hidden.flatten(0, -2), min(k, len(self.head.weight)))
        shape = (*hidden.shape[:-1], -1)
        return TopK(best.values.reshape(shape), best.indices.reshape(shape))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        # No buffers: these are what `DistributedDataParallel` sends around in every step.
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + COUNTS] = self.head.labels.counts.cpu()
        destination[prefix + NAMES] = as_bytes(self.head.labels.names)

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: Any, prefix: str, *rest: Any
    ) -> None:
        counts = state_dict.pop(prefix + COUNTS, None)
        state_dict.pop(prefix + NAMES, None)
        if counts is not None and not torch.equal(counts.cpu(), self.head.labels.counts.cpu()):
            raise HeadtailError(
                f"These weights are for {len(counts)} labels with other counts than the "
                f"{len(self.head.weight)} labels of this model. Write "
                f"`{type(self).__name__}.from_pretrained(folder)`, which needs no labels."
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def save_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, save_directory: Any, **settings: Any
    ) -> None:
        """As transformers': `config.json` and `model.safetensors`, the labels' counts included."""
        settings.setdefault("save_original_format", False)  # `from_pretrained` renames nothing
        super().save_pretrained(save_directory, **settings)

    @classmethod
    def from_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls: type[M],
        pretrained_model_name_or_path: str | Path,
        *,
        config: HeadtailConfig | None = None,
        encoder: PreTrainedModel | None = None,
        dtype: torch.dtype | None = None,
        **hub: Any,
    ) -> M:
        """Load what `save_pretrained` wrote, from a folder or the Hub.

        Args:
            pretrained_model_name_or_path: a folder, or the name of a repository.
            config: what to use instead of `config.json`.
            encoder: to load the weights into, where its class is not one of transformers.
            dtype: of the weights; by default as they were saved.
            **hub: where and what to download: `revision`, `token`, `cache_dir`, ….
        """
        name = str(pretrained_model_name_or_path)
        hub = {key: value for key, value in hub.items() if value}  # transformers passes None on
        for unknown in hub.keys() - HUB:
            raise HeadtailError(
                Setting(unknown),
                " is not an argument here. Load without it, and move the model with "
                "`model.to(…)`, or write one of "
                f"{', '.join(sorted(HUB))}.",
            )
        config = HeadtailConfig.from_pretrained(name, **hub) if config is None else config
        tensors = _tensors(name, hub)
        if not isinstance(config, HeadtailConfig) or not {COUNTS, NAMES} <= tensors.keys():
            raise HeadtailError(f"`{name}` was not saved by a model of headtail.")
        labels = _labels(name, tensors, config)
        if encoder is None:
            _check_sizes(name, tensors, config)
        # Not on torch's meta device, as transformers does it: samplers compute their tables.
        model = cls(config, labels, encoder)
        # As saved, digits included: some layers may have more than others.
        loaded = model.load_state_dict(tensors, strict=False, assign=True)
        missing = set(loaded.missing_keys) - set(model.all_tied_weights_keys)
        if missing or loaded.unexpected_keys:
            odd = sorted({*missing, *loaded.unexpected_keys})
            raise HeadtailError(f"`{name}` and its `config.json` do not fit together: {odd[:3]}.")
        model.tie_weights()
        model.eval()
        return model if dtype is None else cast(Any, model).to(dtype)


def _labels(name: str, tensors: dict[str, Tensor], config: HeadtailConfig) -> Labels:
    """The labels that were saved, checked."""
    counts = tensors[COUNTS]
    try:
        names = saved_names(tensors[NAMES], counts.shape[0] if counts.dim() else 0)
        return Labels(counts, config.smoothing, names)
    except HeadtailError as error:
        raise HeadtailError(f"`{name}` is damaged: {error}") from error


def _check_sizes(name: str, tensors: dict[str, Tensor], config: HeadtailConfig) -> None:
    """Refuse a configuration of other sizes than the weights, before anything is allocated."""
    with torch.device("meta"):
        expected = {f"encoder.{key}": value for key, value in _made_of(config).state_dict().items()}
        expected["head.weight"] = torch.empty(len(tensors[COUNTS]), config.dim)
    wrong = [
        key
        for key, value in expected.items()
        if key in tensors and tensors[key].shape != value.shape
    ]
    # Tables that are tied to another are not saved, and no larger than that.
    missing = [key for key in expected if key not in tensors]
    saved = sum(tensor.numel() for tensor in tensors.values())
    if wrong or sum(expected[key].numel() for key in missing) > saved:
        odd = sorted(wrong or missing)[:3]
        raise HeadtailError(f"`{name}` and its `config.json` do not fit together: {odd}.")


def states_of(outputs: Any, encoder: nn.Module) -> Tensor:
    """`[b, T, d]` the hidden states of an encoder's outputs."""
    states = getattr(outputs, "last_hidden_state", None)
    if states is None:
        raise HeadtailError(
            f"`{type(encoder).__name__}` returns no `last_hidden_state`. Pass a model without a "
            "head of its own, for example `AutoModel.from_pretrained(…)`."
        )
    return states


def _made_of(config: HeadtailConfig) -> PreTrainedModel:
    """A new encoder of the saved class."""
    kind = getattr(transformers, config.encoder_class, None)
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise HeadtailError(
            f"The encoder's class `{config.encoder_class}` is not one of transformers. Build one, "
            "and pass it as ",
            Setting("encoder"),
            ".",
        )
    return kind(config.encoder)


def _tensors(name: str, hub: dict[str, Any]) -> dict[str, Tensor]:
    """All saved tensors, from one file or from several."""
    whole = cached_file(name, SAFE_WEIGHTS_NAME, _raise_exceptions_for_missing_entries=False, **hub)
    if whole is not None:
        return _read(whole)
    index = cached_file(name, SAFE_WEIGHTS_INDEX_NAME, **hub)
    files, _ = get_checkpoint_shard_files(name, index, **hub)
    return {key: tensor for file in files for key, tensor in _read(file).items()}


def _read(path: str) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise HeadtailError(f"`{path}` cannot be read: {error}. Save the model again.") from error

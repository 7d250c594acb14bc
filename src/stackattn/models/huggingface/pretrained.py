"""Shared by the models: registration, initialisation, saving with instructions for loading, and training of stacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel

from ...files import write_text
from ...nn import StackAttention
from .attention import InsertedStack

_CODE = "modeling_stackattn"
_MODULE = '''"""Lets the Auto classes of transformers find this model; its code is in the package stackattn."""

from stackattn.models.huggingface import {names}

__all__ = [{quoted}]
'''
_CARD = """---
library_name: transformers
tags:
- stackattn
---

# {model}

A language model with stack attention. Install the package that contains its code:

```sh
pip install stackattn transformers
```

Importing `stackattn.models.huggingface` registers the model:

```python
import stackattn.models.huggingface
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("path of this folder")
```

Without the import, `AutoModelForCausalLM.from_pretrained("path of this folder", trust_remote_code=True)` also loads it:
`{code}.py` in this folder imports the package.

| | |
| --- | --- |
| stacks in place of attention | {stack_layers} |
| inserted stacks | {inserted_stacks} |
| parameters | {parameters:,} |
"""


class StackPreTrainedModel(PreTrainedModel if TYPE_CHECKING else object):
    """Mixin of all models: initialises stacks, and saves a module for `trust_remote_code=True` and a model card."""

    _is_stateful = True  # rules out assisted decoding, which removes tokens: a stack cannot do that
    auto_classes: ClassVar[dict[str, str]]
    """Names of the architecture's classes by Auto class; set by `register`."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, StackAttention):
            module.reset_parameters()
        elif isinstance(module, InsertedStack):  # called after its stack has been reset
            module.close()

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # For custom code, transformers would skip modules without parameters of their own, such as InsertedStack.
        # `torch.nn.init` does not change parameters that have been loaded, so nothing needs to be skipped.
        super()._initialize_weights(module, is_custom_code=False)

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Save the model with a module for `trust_remote_code=True` and, if the folder has none, a model card.

        Args:
            save_directory: the folder.
            kwargs: see `transformers.PreTrainedModel.save_pretrained`.
        """
        self.config.auto_map = {auto: f"{_CODE}.{name}" for auto, name in self.auto_classes.items()}
        super().save_pretrained(save_directory, **kwargs)
        if not kwargs.get("is_main_process", True):
            return
        folder, names = Path(save_directory), sorted(self.auto_classes.values())
        module = _MODULE.format(names=", ".join(names), quoted=", ".join(f'"{name}"' for name in names))
        write_text(folder / f"{_CODE}.py", module)
        if not (folder / "README.md").exists():
            card = _CARD.format(
                model=type(self).__name__,
                code=_CODE,
                stack_layers=self.config.stack_layers or "none",
                inserted_stacks=self.config.inserted_stacks or "none",
                parameters=self.num_parameters(),
            )
            write_text(folder / "README.md", card)


def register(config: Any, base: type[StackPreTrainedModel], language_model: type[StackPreTrainedModel]) -> None:
    """Register the three classes of an architecture with the Auto classes, and set `auto_classes` for saving."""
    AutoConfig.register(config.model_type, config)
    AutoModel.register(config, base)
    AutoModelForCausalLM.register(config, language_model)
    for model in (base, language_model):
        model.auto_classes = {
            "AutoConfig": config.__name__,
            "AutoModel": base.__name__,
            "AutoModelForCausalLM": language_model.__name__,
        }


def train_only_stacks(model: nn.Module) -> int:
    """Freeze all parameters except those of stacks and of the norms before inserted stacks.

    Args:
        model: a model with stack layers.

    Returns:
        The number of parameters that remain trainable.

    Raises:
        ValueError: the model has no stacks.

    Examples::

        model = StackLlamaForCausalLM.from_pretrained(folder, inserted_stacks="2.superposition-64.2")
        train_only_stacks(model)
    """
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, InsertedStack | StackAttention):
            module.requires_grad_(True)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    if not trained:
        raise ValueError("model: expected stack layers, found none; pass stack_layers or inserted_stacks")
    return trained

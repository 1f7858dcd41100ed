"""What a family of models is: its names in both file formats, and how each is read.

A new family is a module with one of these and a line in catalogue.py, as long as ModelConfig can say what it
computes; else that grows a field, and every runner learns it or refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worker.model.families.metadata import Metadata
from worker.model.families.model_config import ModelConfig
from worker.model.families.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """`has_neighbour_pairs`: a GGUF file has the rows of Q and K in the order of rotated neighbours.
    `norm_offset` is added to the norm weights of a Hugging Face file; GGUF has it in them."""

    hugging_face: tuple[str, ...]  # as `architectures` of config.json
    gguf: str | None  # as `general.architecture`
    read_settings: Callable[[Settings], ModelConfig]
    read_metadata: Callable[[Metadata], ModelConfig]
    has_neighbour_pairs: bool = False
    norm_offset: float = 0.0

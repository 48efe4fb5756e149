"""Safetensors, pytorch_model.bin and the Trainer's `checkpoint-N` of Hugging Face.

A model of several files has an index, `model.safetensors.index.json`, written after its shards. The Trainer
writes training_args.bin beside the model, and trainer_state.json at the very end.
"""

from __future__ import annotations

import re

from fusestripe.checkpoints.parts import Directories, Files, Index, Part, empty_of, joined

__all__ = ["SAFETENSORS", "TRAINER", "TRAINER_FILES", "WEIGHTS", "find"]

SAFETENSORS = "safetensors"
WEIGHTS = "PyTorch weights"
TRAINER = "Hugging Face Trainer"
_SHARD = re.compile(r"(?P<stem>.+)-([0-9]{5})-of-([0-9]{5})\.(?P<kind>safetensors|bin)")
_SINGLE = re.compile(r".+\.safetensors|(pytorch|adapter)_model\.bin")
_INDEX = re.compile(r".+\.(safetensors|bin)\.index(\..+)?\.json")
_ARGUMENTS, _STATE = "training_args.bin", "trainer_state.json"
TRAINER_FILES = frozenset((_ARGUMENTS, _STATE))


def find(directories: Directories) -> list[Part]:
    """The parts of these layouts."""
    parts = []
    for directory, files in directories.items():
        if TRAINER_FILES & files.keys():
            lack = "" if _STATE in files else f"{joined(directory, _STATE)} is missing"
            parts.append(Part(TRAINER, directory, lack))
        shards = {name: match for name in files if (match := _SHARD.fullmatch(name)) is not None}
        singles = [name for name in files if _SINGLE.fullmatch(name)]
        indexes = sorted(name for name in files if _INDEX.fullmatch(name))
        if shards or singles or indexes:
            parts.append(_weights(directory, files, shards, singles, indexes))
    return parts


def _weights(
    directory: str,
    files: Files,
    shards: dict[str, re.Match[str]],
    singles: list[str],
    indexes: list[str],
) -> Part:
    lack = ""
    for match in shards.values():
        stem = f"{match['stem']}.{match['kind']}.index"
        if not any(name.startswith(stem) for name in indexes):
            lack = f"{joined(directory, stem)}.json is missing"
    empty = next(empty_of(sorted({*shards, *singles}), files), None)
    if empty is not None:
        lack = f"{joined(directory, empty)} is empty"
    is_safe = any(".safetensors" in name for name in (*shards, *singles, *indexes))
    named = tuple(Index(joined(directory, name), "json") for name in indexes)
    return Part(SAFETENSORS if is_safe else WEIGHTS, directory, lack, named)

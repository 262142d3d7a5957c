"""Writes a llama model with random weights: 150 KB, thousands of tokens a second on one thread.

It says only words and never ends by itself: dimension 0 of every embedding is a constant, and the output rows
of the special tokens and of the byte tokens are pushed far down along it. The same seed gives the same file.
"""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

CONTEXT = 32768
WIDTH = 32
HEADS = 2
FEED_FORWARD = 64
_TEXT = (
    "a the one some every no it we you they time year people way day man thing life child world house "
    "week company system program question work night point home water room mother area money story fact "
    "month lot right study book eye job word business issue side kind head far black long little own other "
    "old great big small large next early young good new first last high public bad same able is was are be "
    "have has had do says goes makes sees comes thinks looks wants gives uses finds tells asks works feels "
    "leaves and or but of in to with on for at by from"
)
WORDS = _TEXT.split()
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)

THINKING_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' }}"
    "{% if message.reasoning_content %}"
    "{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}"
    "{% endif %}{{ message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}"
    "{{ '<think>\n' if enable_thinking is not defined or enable_thinking else '<think>\n\n</think>\n\n' }}"
    "{% endif %}"
)
"""With this template the model reasons first. A grammar must close the tag, else it never ends."""

_FIM = {"fim_pre": "<pre>", "fim_suf": "<suf>", "fim_mid": "<mid>"}
"""The tokens for code with a gap. They precede the text before the gap, the text after it, and the gap."""
_SPECIAL = ["<unk>", "<s>", "</s>", *_FIM.values()]
_BYTES = [f"<0x{value:02X}>" for value in range(256)]
_SILENT = len(_SPECIAL) + len(_BYTES)
_TYPES = gguf.TokenType


def write_tiny_model(path: Path, seed: int = 7) -> None:
    """Write the file. It appears whole or not at all."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    writer = gguf.GGUFWriter(unfinished, "llama")
    _add_hyperparameters(writer)
    _add_vocabulary(writer)
    _add_weights(writer, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)


def _add_hyperparameters(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = [*_SPECIAL, *_BYTES, *(f"\u2581{word}" for word in WORDS)]
    special = [_TYPES.UNKNOWN, *[_TYPES.CONTROL] * (len(_SPECIAL) - 1)]
    types = [*special, *[_TYPES.BYTE] * len(_BYTES), *[_TYPES.NORMAL] * len(WORDS)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * _SILENT + [-float(index) for index in range(len(WORDS))])
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, token in _FIM.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", _SPECIAL.index(token))
    writer.add_chat_template(TEMPLATE)


def _add_weights(writer: gguf.GGUFWriter, random: np.random.Generator) -> None:
    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    vocabulary = _SILENT + len(WORDS)
    embedding, output = matrix(vocabulary, WIDTH), matrix(vocabulary, WIDTH)
    embedding[:, 0] = 1.0
    output[:, 0] = 0.0
    output[:_SILENT, 0] = -50.0
    ones = np.ones(WIDTH, np.float32)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("blk.0.attn_norm.weight", ones)
    writer.add_tensor("blk.0.ffn_norm.weight", ones)
    for name in ("attn_q", "attn_k", "attn_v"):
        writer.add_tensor(f"blk.0.{name}.weight", matrix(WIDTH, WIDTH))
    into_stream = {"attn_output": matrix(WIDTH, WIDTH), "ffn_down": matrix(WIDTH, FEED_FORWARD)}
    for name, weights in into_stream.items():
        weights[0] = 0.0  # so that nothing is added to the constant
        writer.add_tensor(f"blk.0.{name}.weight", weights)
    writer.add_tensor("blk.0.ffn_gate.weight", matrix(FEED_FORWARD, WIDTH))
    writer.add_tensor("blk.0.ffn_up.weight", matrix(FEED_FORWARD, WIDTH))

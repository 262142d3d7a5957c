"""Writes a llama model that says one given text, word for word, and ends.

Each piece of the text is a token. The last token alone decides the next token: attention and feed-forward are
zero, every embedding has a constant, and each piece has a dimension of its own, which the output row of the
next piece reads. Use it with temperature 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

CONTEXT = 4096
WIDTH = 32
HEADS = 2
FEED_FORWARD = 64
_SPECIAL = ["<unk>", "<s>", "</s>"]
_BYTES = [f"<0x{value:02X}>" for value in range(256)]
_END = 2
_TYPES = gguf.TokenType

TOOL_TEMPLATE = r"""
{%- if tools %}
  {{- '<|im_start|>system\n# Tools\n<tools>' }}
  {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
  {{- '</tools>\nreturn a json object within <tool_call></tool_call> XML tags:\n' }}
  {{- '<tool_call>\n{\"name\": <name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
  {{- '<|im_start|>' + message.role }}
  {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
  {%- for tool_call in message.tool_calls or [] %}
    {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
    {{- '\n<tool_call>\n{\"name\": \"' + tool_call.name + '\", \"arguments\": ' }}
    {{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
  {%- endfor %}
  {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
"""A chat template with tools as Hermes and Qwen have them. llama-server detects this by trying it."""


def write_chain_model(path: Path, pieces: Sequence[str], template: str) -> None:
    """Write the model. It takes at most `WIDTH` - 1 pieces, all different."""
    assert len(pieces) == len(set(pieces)) < WIDTH
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("chain")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_vocabulary(writer, pieces, template)
    _add_weights(writer, len(pieces))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: gguf.GGUFWriter, pieces: Sequence[str], template: str) -> None:
    silent = len(_SPECIAL) + len(_BYTES)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*_SPECIAL, *_BYTES, *(piece.replace(" ", "\u2581") for piece in pieces)])
    writer.add_token_scores([0.0] * silent + [-float(index) for index in range(len(pieces))])
    kinds = [_TYPES.UNKNOWN, _TYPES.CONTROL, _TYPES.CONTROL, *[_TYPES.BYTE] * len(_BYTES)]
    writer.add_token_types([*kinds, *[_TYPES.NORMAL] * len(pieces)])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(_END)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(template)


def _add_weights(writer: gguf.GGUFWriter, pieces: int) -> None:
    first = len(_SPECIAL) + len(_BYTES)
    embedding = np.zeros((first + pieces, WIDTH), np.float32)
    output = np.zeros((first + pieces, WIDTH), np.float32)
    embedding[:, 0] = 1.0
    output[first, 0] = 1.0  # after anything else comes the first piece
    for index in range(pieces):
        embedding[first + index, index + 1] = 10.0
        output[first + index + 1 if index + 1 < pieces else _END, index + 1] = 10.0
    ones, square = np.ones(WIDTH, np.float32), np.zeros((WIDTH, WIDTH), np.float32)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("blk.0.attn_norm.weight", ones)
    writer.add_tensor("blk.0.ffn_norm.weight", ones)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    for name in ("ffn_gate", "ffn_up"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((FEED_FORWARD, WIDTH), np.float32))
    writer.add_tensor("blk.0.ffn_down.weight", np.zeros((WIDTH, FEED_FORWARD), np.float32))

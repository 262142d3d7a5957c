"""The application when the model fails. One line makes the model fail."""

import urllib.error
from typing import Any

import pytest


def test_a_failure_before_the_first_token_has_its_status(chat: Any, scripted_llama: Any) -> None:
    scripted_llama.reply(fault={"kind": "error", "status": 500, "message": "out of memory"})
    with pytest.raises(urllib.error.HTTPError) as failure:
        chat.ask("hello")
    with failure.value as answer:
        assert answer.code == 500
        assert b"out of memory" in answer.read()


@pytest.mark.parametrize("fault", ["error-frame", "truncate", "rst"])
def test_a_failure_in_the_middle_is_an_error_in_the_stream(
    chat: Any, scripted_llama: Any, fault: str
) -> None:
    scripted_llama.reply(text="This will not end well", fault={"kind": fault, "after": 3})
    *_, last = chat.stream("hello")
    assert "error" in last


def test_a_stalled_answer_ends_with_an_error(chat: Any, scripted_llama: Any) -> None:
    scripted_llama.reply(text="Wait for it", fault={"kind": "stall", "after": 2})
    chunks = chat.stream("hello")
    assert next(chunks)["choices"][0]["delta"]["role"] == "assistant"
    chunks.close()  # the client leaves
    assert scripted_llama.ended() == "abandoned"

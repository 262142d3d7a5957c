"""The model says what the test tells it to say."""

import concurrent.futures
import json
from typing import Any


def test_the_model_says_the_text_of_the_test(chat: Any, scripted_llama: Any) -> None:
    scripted_llama.reply(contains="weather", text="Rain, as ever.")
    assert chat.ask("What is the weather like?")["content"] == "Rain, as ever."
    assert scripted_llama.requests[0]["body"]["messages"][0]["content"] == "What is the weather like?"


def test_an_answer_without_a_script_is_the_same_every_time(chat: Any, scripted_llama: Any) -> None:
    first = chat.ask("hello")["content"]
    scripted_llama.reset()
    assert chat.ask("hello")["content"] == first


def test_a_tool_is_called(chat: Any, scripted_llama: Any) -> None:
    scripted_llama.reply(call=[{"name": "get_weather", "arguments": {"city": "Oslo"}}])
    [call] = chat.ask("What is the weather like?")["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}


def test_words_arrive_when_the_model_says_them(chat: Any, scripted_llama: Any) -> None:
    """The test leads the answer: it lets the model say the next word when the client has the last one."""
    scripted_llama.lead()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        chunks = chat.stream("count")
        first = threads.submit(next, chunks)
        model = scripted_llama.next_generation()
        model.say("one")
        assert first.result(5)["choices"][0]["delta"]["role"] == "assistant"
        assert next(chunks)["choices"][0]["delta"]["content"] == "one"
        model.say(" two")
        assert next(chunks)["choices"][0]["delta"]["content"] == " two"
        model.finish()
        assert list(chunks)[-1] == {}


def test_reasoning_comes_before_the_answer(chat: Any, scripted_llama: Any) -> None:
    scripted_llama.reply(reasoning="Let me see.", text="Yes.")
    deltas = [chunk["choices"][0]["delta"] for chunk in chat.stream("really?") if chunk]
    kinds = [kind for delta in deltas for kind in ("reasoning_content", "content") if delta.get(kind)]
    assert kinds == ["reasoning_content"] * 3 + ["content"]

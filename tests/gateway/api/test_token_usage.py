"""Token counts: the last statement counts, and a stream that ended early is counted by the deltas that
passed.
"""

from __future__ import annotations

from typing import Any

import pytest

from slotgate.gateway.api.token_usage import TokenUsage
from tests.support.llama_frames import chat_body, timings, usage

Json = dict[str, Any]


def read(*answers: Json, deltas: int = 0, choices: int = 1, prompts: int = 1) -> TokenUsage:
    """Return the counts after these chunks of a stream that goes on."""
    token_usage = TokenUsage(choices, prompts)
    for answer in answers:
        token_usage.read(answer)
    token_usage.deltas = deltas
    return token_usage


def finished(*answers: Json, deltas: int = 0, choices: int = 1, prompts: int = 1) -> TokenUsage:
    token_usage = read(*answers, deltas=deltas, choices=choices, prompts=prompts)
    token_usage.settle()
    return token_usage


def counts(token_usage: TokenUsage) -> tuple[int | None, int, int, bool]:
    return token_usage.prompt_tokens, token_usage.cached_tokens, token_usage.completed, token_usage.exact


def test_stated_usage_counts_for_a_finished_answer() -> None:
    assert counts(finished({"usage": usage(7)}, deltas=9)) == (31, 30, 7, True)
    assert counts(finished(chat_body(["a", "b"], "m", "stop"))) == (31, 30, 2, True)


def test_timings_count_where_no_usage_is_stated() -> None:
    assert counts(read({"timings": timings(7)}, deltas=5)) == (31, 30, 7, False)
    assert counts(finished({"timings": timings(7)}, deltas=5)) == (31, 30, 7, True)


def test_timings_do_not_override_usage() -> None:
    assert counts(finished({"usage": usage(7)}, {"timings": {"predicted_n": 1}})) == (31, 30, 7, True)
    assert counts(finished({"usage": usage(7), "timings": {"predicted_n": 1}})) == (31, 30, 7, True)


def test_last_usage_counts() -> None:
    assert counts(finished({"usage": usage(1)}, {"usage": usage(9)}, deltas=9)) == (31, 30, 9, True)


def test_first_statement_of_a_stream_is_not_taken_for_the_last() -> None:
    """`message_start` states 0 output tokens, but a client that leaves later has had more."""
    start = {"message": {"usage": {"cache_read_input_tokens": 42, "input_tokens": 1, "output_tokens": 0}}}
    assert counts(read(start, deltas=400)) == (43, 42, 400, False)
    assert counts(finished(start, {"usage": {"output_tokens": 401}}, deltas=400)) == (43, 42, 401, True)


def test_running_usage_in_every_chunk_counts_the_deltas_that_passed() -> None:
    chunks = [{"usage": {"prompt_tokens": 3, "completion_tokens": number}} for number in range(1, 6)]
    assert counts(read(*chunks, deltas=4)) == (3, 0, 5, False)
    assert counts(finished(*chunks, deltas=4)) == (3, 0, 5, True)


def test_native_chunks_state_running_counts() -> None:
    running = {"content": "a", "stop": False, "tokens_predicted": 3, "tokens_evaluated": 13}
    assert counts(read(running, deltas=3)) == (13, 0, 3, False)
    last = running | {"stop": True, "timings": {"cache_n": 12, "prompt_n": 1, "predicted_n": 4}}
    assert counts(finished(running, last, deltas=3)) == (13, 12, 4, True)


def test_prompt_progress_states_the_prompt() -> None:
    progress = {"prompt_progress": {"total": 43, "cache": 42, "processed": 42, "time_ms": 0}}
    assert counts(read(progress)) == (43, 42, 0, False)


def test_stream_that_ended_early_is_counted_by_its_deltas() -> None:
    assert counts(read({"usage": None}, {}, deltas=5)) == (None, 0, 5, False)
    assert counts(read({"timings": timings(3)}, deltas=5)) == (31, 30, 5, False)


def test_success_that_states_nothing_is_counted_by_its_deltas_and_is_not_exact() -> None:
    assert counts(finished({}, deltas=5)) == (None, 0, 5, False)


@pytest.mark.parametrize("nothing", [None, {}, [], "7", {"prompt_tokens": None}, {"completion_tokens": "7"}])
def test_usage_without_a_count_is_ignored(nothing: object) -> None:
    assert counts(read({"timings": timings(3)}, {"usage": nothing}, deltas=5)) == (31, 30, 5, False)


def test_odd_counts_are_unknown() -> None:
    odd = {"prompt_tokens": 3, "completion_tokens": -1, "prompt_tokens_details": {"cached_tokens": 1.5}}
    assert counts(finished({"usage": odd}, deltas=2)) == (3, 0, 2, False)
    assert counts(finished({"usage": odd | {"prompt_tokens_details": []}})) == (3, 0, 0, True)
    assert counts(finished({"usage": {"prompt_tokens": True, "completion_tokens": 5}})) == (None, 0, 5, False)


def test_count_that_no_answer_can_have_is_unknown() -> None:
    """The sum of two such counts could not be written as JSON, and neither could the list of the last
    requests.
    """
    beyond = {"prompt_tokens": 2**64 - 1, "completion_tokens": 5, "cache_read_input_tokens": 2**64 - 1}
    assert counts(finished({"usage": beyond})) == (None, 0, 5, False)


def test_running_usage_grows_with_the_deltas_that_pass() -> None:
    token_usage = TokenUsage()
    assert token_usage.running_usage() == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    token_usage.deltas = 2
    assert token_usage.running_usage()["total_tokens"] == 2
    token_usage.read({"timings": timings(3)})
    assert token_usage.running_usage() == {"prompt_tokens": 31, "completion_tokens": 3, "total_tokens": 34}


def test_repr_shows_an_estimate() -> None:
    shown = repr(read(deltas=5)), repr(finished({"usage": usage(7)}))
    assert shown == ("<TokenUsage ~None+5 tokens>", "<TokenUsage 31+7 tokens>")


# -- answers of several parts


def finish_chunk(index: int, completion: int) -> Json:
    choice = {"finish_reason": "length", "index": index, "delta": {}}
    return {"choices": [choice], "timings": {"cache_n": 0, "prompt_n": 43, "predicted_n": completion}}


def test_stream_of_several_choices_sums_their_completions_and_has_one_prompt() -> None:
    assert counts(finished(finish_chunk(1, 5), finish_chunk(0, 7), deltas=10, choices=2)) == (43, 0, 12, True)


def test_usage_chunks_that_name_no_choice_count_one_part_each() -> None:
    chunk = {"choices": [], "usage": {"prompt_tokens": 43, "completion_tokens": 5}}
    assert counts(finished(chunk, chunk, deltas=9, choices=2)) == (43, 0, 10, True)


def test_usage_chunks_complete_the_parts_whose_timings_came_before() -> None:
    """With `timings_per_token` and `include_usage` each part states timings, and usage without its index."""
    chunk = {"choices": [], "usage": {"prompt_tokens": 43, "completion_tokens": 20}}
    timed = [finish_chunk(index, 20) for index in (0, 1)]
    assert counts(finished(*timed, chunk, chunk, deltas=38, choices=2)) == (43, 0, 40, True)


def test_running_usage_without_an_index_opens_no_more_parts_than_there_are() -> None:
    chunks = [
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": number}} for number in range(50)
    ]
    assert counts(finished(*chunks, deltas=60, choices=2))[0] == 3


def test_stream_of_several_choices_that_states_one_is_counted_by_its_deltas() -> None:
    stated = {"usage": {"prompt_tokens": 3, "completion_tokens": 9}}
    assert counts(finished(stated, deltas=17, choices=2)) == (3, 0, 17, False)


def test_prompts_of_a_stream_are_summed() -> None:
    first = {"index": 0, "stop": True, "tokens_predicted": 3, "tokens_evaluated": 13}
    second = {"index": 1, "stop": True, "tokens_predicted": 4, "tokens_evaluated": 5}
    assert counts(finished(first, second, deltas=7, prompts=2)) == (18, 0, 7, True)
    assert counts(read(first, deltas=5, prompts=2)) == (None, 0, 5, False)


def test_whole_answer_of_several_choices_is_extrapolated_from_the_first() -> None:
    """llama-server states the counts of the first choice only."""
    choices = [
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "0123456789"}},
        {"finish_reason": "stop", "index": 1, "message": {"role": "assistant", "content": "01234"}},
    ]
    token_usage = TokenUsage(choices=2)
    token_usage.read_whole({"choices": choices, "usage": {"prompt_tokens": 43, "completion_tokens": 10}})
    assert counts(token_usage) == (43, 0, 15, False)


def test_choices_that_all_reached_the_limit_have_as_many_tokens() -> None:
    choices = [{"finish_reason": "length", "index": n, "text": "a" * (n + 1)} for n in range(50)]
    token_usage = TokenUsage(prompts=50)
    token_usage.read_whole({"choices": choices, "usage": {"prompt_tokens": 24, "completion_tokens": 50}})
    assert counts(token_usage) == (None, 0, 2500, False)


def test_list_of_whole_answers_is_their_sum() -> None:
    parts = [{"tokens_predicted": 5, "tokens_evaluated": 13}, {"tokens_predicted": 6, "tokens_evaluated": 5}]
    token_usage = TokenUsage(prompts=2)
    token_usage.read_whole([*parts])
    assert counts(token_usage) == (18, 0, 11, True)


# -- reasoning


def test_reasoning_is_counted_by_statement_or_by_the_deltas_that_passed() -> None:
    stated = {
        "prompt_tokens": 3,
        "completion_tokens": 9,
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    assert finished({"usage": stated}).reasoning_tokens == 4
    token_usage = read(deltas=5)
    for reasoning, deltas in ((True, 2), (False, 4), (True, 1)):
        token_usage.next_deltas(reasoning=reasoning)
        token_usage.deltas += deltas
    assert token_usage.reasoning_tokens == 3

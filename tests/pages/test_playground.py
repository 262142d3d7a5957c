"""The playground in a real browser, in front of a real llama-server."""

from __future__ import annotations

import json
import shlex

from playwright.sync_api import Page, Route, expect

from tests.pages.conftest import Looks
from tests.support.operated import Operated


def say(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def body_in(line: str) -> dict[str, object]:
    """Return the body that the shell would pass to curl."""
    words = shlex.split(line)
    body: dict[str, object] = json.loads(words[words.index("-d") + 1])
    return body


def test_a_conversation_shows_answers_and_their_rate(look: Looks, operated: Operated) -> None:
    page = look().signed_in("/")
    assert page.url == f"{operated.url}/admin/chat"
    expect(page.get_by_label("Model")).to_have_value("m")
    page.get_by_label("System prompt").fill("You are brief.")
    page.get_by_label("Max tokens").fill("20")
    for turn, text in enumerate(("Hello!", "And now it's you."), 1):
        say(page, text)
        expect(page.locator(".message .said")).to_have_count(turn)
        expect(page.locator(".message .said").last).to_contain_text("tokens/s")
        said = page.locator('.message[data-role="assistant"] .text').last.inner_text()
        assert said
        expect(page.get_by_role("status")).to_contain_text(said.split()[0])
    page.get_by_text("The same request with curl").click()
    line = page.locator("#curl").inner_text()
    messages = body_in(line)["messages"]
    assert isinstance(messages, list)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[3]["content"] == "And now it's you."
    assert "Bearer $SLOTGATE_KEY" in line
    assert "sg-" not in line
    [last, *_] = operated.ask("GET", "/admin/requests")["requests"]
    assert (last["tenant"], last["outcome"]) == ("operator", "ok")


FIVE_STREAMS = """() => {
  const messages = [{ role: "user", content: "Go on." }];
  const body = JSON.stringify({ stream: true, max_tokens: 1500, messages });
  window.others = new AbortController();
  for (let number = 0; number < 5; number += 1)
    fetch("/admin/chat/completions", {
      method: "POST", headers: { "content-type": "application/json" }, body, signal: others.signal,
    }).catch(() => {});
}"""
ASK_FOR_HEALTH = """() => Promise.race([
  fetch("/health", { signal: others.signal }).then(() => "answered").catch(() => "aborted"),
  new Promise((resolve) => setTimeout(() => resolve("waits for a connection"), 300)),
])"""


def test_scenario_024_stop_ends_the_answer_and_needs_no_connection_of_its_own(
    look: Looks, operated: Operated
) -> None:
    """A browser opens six connections to one server. A request to stop one of six streams would wait."""
    page = look().signed_in("/admin/chat")
    page.get_by_label("Max tokens").fill("1500")
    say(page, "Tell me a very long story.")
    expect(page.locator(".message.streaming .text")).not_to_be_empty()
    page.evaluate(FIVE_STREAMS)
    assert page.evaluate(ASK_FOR_HEALTH) == "waits for a connection"
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator(".message .said")).to_contain_text("stopped")
    page.evaluate("() => others.abort()")
    page.goto(operated.url + "/admin")
    expect(page.locator('.backend .cell[data-state="idle"]')).to_have_count(2, timeout=15_000)
    latest = operated.ask("GET", "/admin/requests")["requests"][:6]
    assert {request["outcome"] for request in latest} == {"client_gone"}


def test_an_error_is_shown_as_the_gateway_states_it(look: Looks) -> None:
    one = look()
    page = one.signed_in("/admin/chat")
    page.get_by_label("Use a tenant's key").fill("sg-nobody")
    say(page, "Hello!")
    failure = page.locator(".failure")
    expect(failure).to_contain_text("401 invalid_api_key")
    expect(failure).to_contain_text("the API key is not known here")
    expect(failure).to_contain_text("request ")
    assert all("401" in text for text in one.complaints)
    one.complaints.clear()


def test_markup_in_an_error_is_text_and_a_numeric_code_is_shown_once(look: Looks) -> None:
    one = look()
    page = one.signed_in("/admin/chat")
    error = {"message": "<img src=x onerror=document.title='run'>", "code": 500}
    page.route("**/admin/chat/completions", lambda route: route.fulfill(status=500, json={"error": error}))
    say(page, "<b>Hello!</b>")
    expect(page.locator(".failure p")).to_have_text(f"500 {error['message']}")
    expect(page.locator("#messages img, #messages b")).to_have_count(0)
    expect(page).to_have_title("Playground · slotgate")
    assert all("500" in text for text in one.complaints)
    one.complaints.clear()


def test_a_request_with_a_tenants_key_counts_for_that_tenant(look: Looks, operated: Operated) -> None:
    page = look().signed_in("/admin/chat")
    page.get_by_label("Use a tenant's key").fill("sg-team-b")
    page.get_by_label("Max tokens").fill("5")
    expect(page.get_by_label("Model")).to_have_value("m")
    say(page, "Hello!")
    expect(page.locator(".message .said")).to_have_count(1)
    [last, *_] = operated.ask("GET", "/admin/requests")["requests"]
    assert (last["tenant"], last["outcome"]) == ("team-b", "ok")
    assert page.evaluate("() => [localStorage.length, sessionStorage.length]") == [0, 0]


def test_reasoning_is_separate_and_neither_part_can_be_markup(look: Looks) -> None:
    page = look().signed_in("/admin/chat")
    deltas = [
        {"reasoning_content": "Let me <b>think</b>."},
        {"content": "It is "},
        {"content": "<i>four</i>."},
    ]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    def thinks(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body=stream)

    page.route("**/admin/chat/completions", thinks)
    say(page, "What is two and two?")
    answer = page.locator('.message[data-role="assistant"]')
    expect(answer.locator(".reasoning .text")).to_have_text("Let me <b>think</b>.")
    expect(answer.locator(":scope > .text")).to_have_text("It is <i>four</i>.")
    expect(answer.locator("b, i")).to_have_count(0)


def test_the_playground_works_after_a_restart_of_the_gateway(look: Looks, restarted: Operated) -> None:
    one = look(restarted)
    page = one.signed_in("/admin/chat")
    page.get_by_label("Max tokens").fill("5")
    restarted.stop()
    restarted.start()
    say(page, "Hello again!")
    expect(page.locator(".message .said")).to_contain_text("tokens")
    one.complaints.clear()  # the browser logs the 401 of the ended session

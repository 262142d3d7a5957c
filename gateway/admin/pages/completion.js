// One streamed chat completion: its text so far, and its speed.

import { Refused } from "./session.js";
import { events } from "./sse.js";

export class Completion {
  /** Calls `onChange()` after each chunk. */
  constructor(onChange) {
    this.onChange = onChange;
    this.content = "";
    this.reasoning = "";
    this.finish = "";
    this.requestId = "";
    this.tokens = 0;
    this.startedAt = performance.now();
    this.firstAt = null;
    this.lastAt = null;
    this.statedRate = null;
    this.abort = new AbortController();
  }

  /** Run to the end. Throws `Refused` for an error, also for one inside the stream. `stop()` makes it return normally. */
  async run(path, headers, body) {
    try {
      const answer = await fetch(path, {
        method: "POST",
        headers: { "content-type": "application/json", ...headers },
        body: JSON.stringify(body),
        signal: this.abort.signal,
      });
      this.requestId = answer.headers.get("x-request-id") || "";
      if (!answer.ok) throw new Refused(answer.status, (await answer.json().catch(() => ({}))).error);
      for await (const data of events(answer.body)) {
        if (data === "[DONE]") return;
        this.take(JSON.parse(data), answer.status);
      }
      throw new Refused(answer.status, { message: "the stream ended before it was finished" });
    } catch (error) {
      if (error instanceof TypeError) throw new Refused(0, { message: "the connection to the gateway failed" });
      if (error.name !== "AbortError") throw error;
      this.finish = "stopped";
    }
  }

  /** Close the connection. The gateway then releases the slot. */
  stop() {
    this.abort.abort();
  }

  /** Tokens per second; null until there are two tokens to measure between. */
  get rate() {
    if (this.statedRate) return this.statedRate;
    const seconds = (this.lastAt - this.firstAt) / 1000;
    return this.tokens > 1 && seconds > 0 ? (this.tokens - 1) / seconds : null;
  }

  get firstAfterMs() {
    return this.firstAt === null ? null : this.firstAt - this.startedAt;
  }

  take(chunk, status) {
    if (chunk.error) throw new Refused(status, chunk.error);
    const choice = chunk.choices?.[0];
    const { content, reasoning_content: reasoning } = choice?.delta ?? {};
    if (content || reasoning) {
      this.content += content ?? "";
      this.reasoning += reasoning ?? "";
      this.tokens += 1;
      this.lastAt = performance.now();
      this.firstAt ??= this.lastAt;
    }
    this.finish = choice?.finish_reason || this.finish;
    const timings = chunk.timings;
    if (timings?.predicted_n) {
      this.tokens = timings.predicted_n;
      this.statedRate = timings.predicted_per_second ?? null;
    }
    this.onChange();
  }
}

// The last requests, each with a bar that shows the time it spent in the queue, in prefill and in the stream.
//
// Within a bar, lengths are proportional to time. Between bars the scale is the square root, so that a request of one
// second is still readable beside a request of one minute.

import { keep, make, say, set } from "./dom.js";
import { duration, plural } from "./format.js";

const KINDS = { running: "good", queued: "wait", ok: "none", client_gone: "warn", client_stalled: "warn" };
const scale = { longest: 1 };
const WORDS = { client_gone: "client left", client_stalled: "client stalled" };

/** Draw the live requests, then the ended ones. The button of a live request calls `onCancel(request)`. */
export function drawRequests(list, live, ended, onCancel) {
  const rows = [...live.map((request) => ({ ...request, live: true })), ...ended];
  const longest = Math.max(...rows.map((request) => request.total_ms), 1);
  const key = (request) => (request.live ? `live ${request.tenant} ${request.id}` : `ended ${request.n}`);
  scale.longest = longest;
  keep(list, rows, key, (request) => row(request, onCancel));
}

/** Return how long each part took, in milliseconds. The current part of a live request counts up to now. */
export function parts({ queue_ms: queue, ttft_ms: first, total_ms: total, stream, outcome }) {
  const waited = outcome === "queued" ? total : (queue ?? 0);
  const rest = Math.max(0, total - waited);
  if (outcome === "queued") return { queue: waited };
  if (!stream) return { queue: waited, answer: rest };
  const prefill = first === null ? rest : Math.min(rest, Math.max(0, first - waited));
  return { queue: waited, prefill, stream: rest - prefill };
}

/** Return true if the key has a name. A key without one is identified by its hash, which is not worth showing. */
const named = (key) => key && !key.startsWith("sha256:");

function row(first, onCancel) {
  const outcome = make("span", { class: "pill" });
  const who = make("span");
  const model = make("span", { class: "sub" });
  const fall = make("div", { class: "waterfall", role: "img" });
  const bars = Object.fromEntries(["queue", "prefill", "stream", "answer"].map((part) => [part, make("span", { class: part })]));
  fall.append(...Object.values(bars));
  const time = make("span");
  const tokens = make("span", { class: "sub" });
  const act = make("div", { class: "act" });
  const node = make("li", {}, outcome, make("div", { class: "who" }, who, model), make("div", { class: "fall" }, fall));
  node.append(make("div", { class: "numbers" }, time, tokens), act);
  let latest = first;
  if (first.live) {
    const cancel = make("button", { type: "button", "data-cancel": first.id, "aria-label": `Cancel request ${first.id}` }, "Cancel");
    cancel.addEventListener("click", () => onCancel(latest));
    act.append(cancel);
  }
  const update = (request) => {
    latest = request;
    const known = parts(request);
    say(outcome, request.code || WORDS[request.outcome] || request.outcome);
    set(outcome, "title", outcome.textContent);
    set(outcome, "data-kind", request.code ? "bad" : (KINDS[request.outcome] ?? "bad"));
    say(who, named(request.key) ? `${request.tenant} / ${request.key}` : request.tenant);
    say(model, [request.model, request.backend].filter(Boolean).join(" on "));
    set(node, "title", request.id);
    set(fall, "aria-label", Object.entries(known).map(([part, ms]) => `${part} ${duration(ms)}`).join(", "));
    const width = Math.sqrt(request.total_ms / scale.longest) * 100;
    for (const [part, bar] of Object.entries(bars)) bar.style.width = `${((known[part] ?? 0) / (request.total_ms || 1)) * width}%`;
    say(time, duration(request.total_ms));
    const made = request.completion_tokens ? plural(request.completion_tokens, "token") : "";
    say(tokens, [made, request.ttft_ms === null ? "" : `first after ${duration(request.ttft_ms)}`].filter(Boolean).join(" · "));
  };
  return { node, update };
}

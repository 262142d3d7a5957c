// The playground: a conversation with a model through the gateway.
//
// Requests of a signed-in operator count for the tenant `operator`. They carry the session cookie and use a path that
// only operators may use. With a tenant's key in its field, a request uses the public path, as that tenant's clients do.

import { Completion } from "./completion.js";
import { curlLine } from "./curl.js";
import { byId, make, say } from "./dom.js";
import { enter } from "./entry.js";
import { duration, plural, rate } from "./format.js";
import { Messages } from "./messages.js";
import { callGateway, signInAgain } from "./session.js";

const messages = new Messages(byId("messages"));
let conversation = [];
let completion = null;

const tenantKey = () => byId("tenant-key").value.trim();
const bearer = () => (tenantKey() ? { authorization: `Bearer ${tenantKey()}` } : {});

async function listModels() {
  const picker = byId("model");
  const before = picker.value;
  const names = tenantKey() ? await modelsOfTenant() : await modelsOfOperator();
  picker.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  if (names.includes(before)) picker.value = before;
  drawCurl();
}

async function modelsOfTenant() {
  const answer = await fetch("/v1/models", { headers: bearer() });
  return answer.ok ? (await answer.json()).data.map((model) => model.id) : [];
}

async function modelsOfOperator() {
  const { models } = await callGateway("GET", "/admin/status");
  return models.flatMap((model) => [model.name, ...model.aliases]);
}

function requestFor(said) {
  const system = byId("system").value.trim();
  const body = { model: byId("model").value, stream: true };
  body.messages = [...(system ? [{ role: "system", content: system }] : []), ...said];
  if (byId("temperature").value !== "") body.temperature = Number(byId("temperature").value);
  if (byId("max-tokens").value !== "") body.max_tokens = Number(byId("max-tokens").value);
  return body;
}

function drawCurl() {
  const draft = byId("prompt").value.trim();
  const said = draft || !conversation.length ? [...conversation, { role: "user", content: draft || "Hello!" }] : conversation;
  say(byId("curl"), curlLine(location.origin, requestFor(said)));
}

function figuresOf({ tokens, rate: perSecond, firstAfterMs, finish }) {
  const parts = [plural(tokens, "token")];
  if (perSecond) parts.push(`${rate(perSecond)} tokens/s`);
  if (firstAfterMs !== null) parts.push(`first after ${duration(firstAfterMs)}`);
  if (finish && finish !== "stop") parts.push(finish === "length" ? "stopped at max tokens" : finish);
  return parts.join(" · ");
}

function showBusy(busy) {
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  (busy ? byId("stop") : byId("prompt")).focus();
}

async function ask(text) {
  if (!byId("model").value) await listModels().catch(() => {}); // the list is empty if no backend was up when the page opened
  const said = conversation;
  said.push({ role: "user", content: text });
  messages.user(text);
  const body = requestFor(said);
  const answer = messages.assistant(body.model);
  const current = new Completion(() => {
    answer.show(current);
    say(byId("figures"), figuresOf(current));
  });
  completion = current;
  showBusy(true);
  say(byId("figures"), "Waiting for the first token…");
  try {
    await run(current, body);
    answer.end(figuresOf(current));
  } catch (error) {
    answer.end("");
    answer.fail(error, current.requestId);
  }
  if (current.content) said.push({ role: "assistant", content: current.content });
  else said.pop();
  completion = null;
  const stopped = current.finish === "stopped" ? "Stopped. The slot is released." : "";
  say(byId("figures"), stopped);
  say(byId("announced"), stopped || current.content); // a screen reader reads the whole answer once, not each token
  showBusy(false);
  drawCurl();
}

/** Send the request. If a restarted gateway has forgotten the session, sign in again and send it once more. */
async function run(current, body) {
  const path = tenantKey() ? "/v1/chat/completions" : "/admin/chat/completions";
  try {
    await current.run(path, bearer(), body);
  } catch (error) {
    const forgotten = error.status === 401 && !tenantKey() && !current.content;
    if (!forgotten || !(await signInAgain())) throw error;
    await current.run(path, bearer(), body);
  }
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("prompt").value.trim();
  if (!text || completion) return;
  byId("prompt").value = "";
  ask(text);
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("composer").requestSubmit();
  }
});
byId("stop").addEventListener("click", () => completion?.stop());
byId("clear").addEventListener("click", () => {
  completion?.stop();
  conversation = [];
  messages.clear();
  say(byId("figures"), "");
  drawCurl();
});
byId("settings").open = matchMedia("(min-width: 52rem)").matches;
byId("copy").hidden = !navigator.clipboard;
byId("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(byId("curl").textContent);
  say(byId("copy"), "Copied");
});
byId("tenant-key").addEventListener("change", () => listModels().catch(() => {}));
for (const id of ["model", "system", "temperature", "max-tokens", "prompt"]) byId(id).addEventListener("input", drawCurl);

await enter({
  onOpen: () => listModels().then(() => byId("prompt").focus(), () => {}),
  onShut: () => {
    completion?.stop();
    byId("tenant-key").value = "";
  },
});

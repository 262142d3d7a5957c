// The dashboard draws the snapshots that the feed delivers, and its buttons run actions.

import { cancelRequest, runBackendAction } from "./actions.js";
import { drawQueue, drawTenants } from "./bars.js";
import { Chart } from "./chart.js";
import { byId, keep, make, say, sayOrHide, set } from "./dom.js";
import { enter } from "./entry.js";
import { Feed } from "./feed.js";
import { duration, rate, seconds } from "./format.js";
import { History } from "./history.js";
import { drawRequests } from "./requests.js";
import { drawBackends, drawLegend } from "./slots.js";

const history = new History();
const tokensChart = new Chart(byId("tokens-chart"), { title: "Tokens per second", format: rate, area: true });
const ttftChart = new Chart(byId("ttft-chart"), { title: "Time to first token", format: duration });
drawLegend(byId("legend"));

function draw(snapshot) {
  history.take(snapshot);
  const { backends, models, queue, tenants, live, rates } = snapshot;
  const slots = backends.reduce((sum, backend) => sum + backend.slots.total, 0);
  const busy = backends.reduce((sum, backend) => sum + backend.cells.filter((cell) => cell.state !== "idle").length, 0);
  drawFigures([
    ["Slots busy", String(busy), `of ${slots}`],
    ["Waiting", String(queue.depth), queue.oldest_s >= 1 ? `for ${seconds(queue.oldest_s)}` : ""],
    ["Tokens per second", rate(rates.tokens_per_s), ""],
    ["Time to first token", duration(history.median("ttft_ms")), ""],
  ]);
  for (const backend of backends) backend.models = models.filter((model) => model.backends.includes(backend.name));
  drawBackends(byId("backends"), backends, (name, action) => attempt(() => runBackendAction(name, action)));
  tokensChart.draw(history.series("tokens_per_s", rates.spans), rates.span_s);
  ttftChart.draw(history.series("ttft_ms", rates.spans), rates.span_s, history.series("ttft_max_ms", rates.spans));
  byId("queue-empty").hidden = queue.depth > 0;
  say(byId("queue-oldest"), queue.oldest_s >= 1 ? `the longest for ${seconds(queue.oldest_s)}` : "");
  drawQueue(byId("queue"), queue.by_tenant);
  byId("tenants-empty").hidden = tenants.length > 0;
  drawTenants(byId("tenants"), tenants, slots);
  byId("requests-empty").hidden = live.length + history.ended.length > 0;
  drawRequests(byId("requests"), live, history.ended, (request) => attempt(() => cancelRequest(request)));
}

function drawFigures(figures) {
  keep(byId("figures"), figures, ([name]) => name, ([name]) => {
    const value = make("span");
    const more = make("small");
    const node = make("div", {}, make("dt", {}, name), make("dd", {}, value, " ", more));
    return { node, update: ([, text, aside]) => (say(value, text), say(more, aside)) };
  });
}

/** Run an action and show the error if it fails. */
async function attempt(action) {
  sayOrHide(byId("problem"), "");
  try {
    await action();
  } catch (error) {
    sayOrHide(byId("problem"), error.message);
  }
}

let lastAt = null;

function showState(state) {
  const stale = state === "stale";
  if (!stale) lastAt = new Date();
  sayOrHide(byId("connection"), stale ? "Disconnected" : "Live");
  set(byId("connection"), "data-state", state);
  byId("content").classList.toggle("stale", stale);
  const since = lastAt ? `This page shows the state of ${lastAt.toLocaleTimeString()}. ` : "";
  sayOrHide(byId("stale"), stale ? `No connection to the gateway. ${since}Reconnecting…` : "");
}

const feed = new Feed({ onSnapshot: draw, onState: showState, onSignedOut: () => leave() });
const page = await enter({
  onOpen: () => feed.open(),
  onShut: () => leave(false),
});

function leave(shut = true) {
  feed.close();
  byId("connection").hidden = true;
  if (shut) page.shut();
}

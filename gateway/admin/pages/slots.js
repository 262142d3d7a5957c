// A card for each backend, with a cell for each of its slots.

import { keep, make, say, sayOrHide, set } from "./dom.js";
import { plural, seconds } from "./format.js";
import { labelOf } from "./actions.js";

/** State -> its sign and its meaning. The sign lets people tell states apart without seeing colours. */
const STATES = {
  idle: ["·", "free"],
  prefill: ["▤", "reading the prompt"],
  generating: ["▶", "generating tokens"],
  working: ["●", "generating an answer that is not streamed"],
  quarantined: ["!", "its client left, and llama-server has not shown it idle yet"],
  foreign: ["◇", "used by a client that does not go through this gateway"],
};
const KINDS = { ready: "good", starting: "wait", loading: "wait", draining: "warn", failed: "bad", "busy-unreachable": "warn" };
/** A backend with more slots than this has smaller cells. */
const MANY = 24;

export function drawLegend(list) {
  for (const [state, [sign, meaning]] of Object.entries(STATES)) {
    const cell = make("span", { class: "cell", "data-state": state, "aria-hidden": "true" }, sign);
    list.append(make("li", { title: meaning }, cell, state));
  }
}

/** Draw all cards. A button calls `onAction(name, action)`. */
export function drawBackends(parent, backends, onAction) {
  keep(parent, backends, (backend) => backend.name, () => card(onAction));
}

function card(onAction) {
  const name = make("h3");
  const state = make("span", { class: "pill" });
  const where = make("span", { class: "where" });
  const actions = make("div", { class: "actions" });
  const reason = make("p", { class: "reason" });
  const cells = make("ul", { class: "cells" });
  const node = make("article", { class: "card backend" });
  node.append(make("header", {}, name, state, where, actions), reason, cells);
  const update = (backend) => {
    const { total, idle } = backend.slots;
    say(name, backend.name);
    say(state, backend.state);
    set(state, "data-kind", KINDS[backend.state] || "none");
    const models = backend.models.map((model) => model.name).join(", ");
    const free = total ? `${idle} of ${plural(total, "slot")} free` : "no slots known";
    say(where, [models, backend.url, free].filter(Boolean).join(" · "));
    sayOrHide(reason, backend.state === "ready" ? "" : backend.reason);
    set(cells, "aria-label", `Slots of ${backend.name}`);
    cells.classList.toggle("many", backend.cells.length > MANY);
    keep(actions, backend.orders, (action) => action, (action) => button(action, backend.name, onAction));
    keep(cells, backend.cells.map((cell, number) => ({ ...cell, number })), (cell) => cell.number, drawCell);
  };
  return { node, update };
}

function button(action, name, onAction) {
  const node = make("button", { type: "button", "data-action": action, "aria-label": `${labelOf(action)} ${name}` });
  node.addEventListener("click", () => onAction(name, action));
  return { node, update: () => say(node, labelOf(action)) };
}

function drawCell() {
  const glyph = make("span", { class: "glyph", "aria-hidden": "true" });
  const name = make("span", { class: "name" });
  const age = make("span", { class: "age" });
  const who = make("span", { class: "who" });
  const count = make("span", { class: "count" });
  const state = make("span", {}, glyph, " ", name);
  const node = make("li", { class: "cell" }, make("span", { class: "top" }, state, age), who, count);
  const update = (cell) => {
    const [sign, meaning] = STATES[cell.state] || ["?", ""];
    set(node, "data-state", cell.state);
    set(node, "title", [`slot ${cell.number}: ${cell.state} (${meaning})`, cell.tenant, cell.request].filter(Boolean).join("\n"));
    say(glyph, sign);
    say(name, cell.state);
    say(age, cell.age_s === undefined ? "" : seconds(cell.age_s));
    say(who, cell.tenant || "");
    say(count, cell.tokens ? plural(cell.tokens, "token") : "");
  };
  return { node, update };
}

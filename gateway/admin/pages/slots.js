// Backends and their slots: one card each, one cell a slot.

import { keep, make, say, sayOrHide, set } from "./dom.js";
import { plural, seconds } from "./format.js";
import { wordFor } from "./orders.js";

/** State: its sign, and what it means. Colour is never all that tells them apart. */
const STATES = {
  idle: ["·", "free"],
  prefill: ["▤", "reading the prompt"],
  generating: ["▶", "making tokens"],
  working: ["●", "making an answer that is not streamed"],
  quarantined: ["!", "abandoned, and not yet seen idle"],
  foreign: ["◇", "busy for somebody who does not come through this gateway"],
};
const KINDS = { ready: "good", starting: "wait", loading: "wait", draining: "warn", failed: "bad", "busy-unreachable": "warn" };
const MANY = 24;

export function drawLegend(list) {
  for (const [state, [sign, meaning]] of Object.entries(STATES)) {
    const cell = make("span", { class: "cell", "data-state": state, "aria-hidden": "true" }, sign);
    list.append(make("li", { title: meaning }, cell, state));
  }
}

/** `onOrder(name, order)` is called when a button is pressed. */
export function drawBackends(parent, backends, onOrder) {
  keep(parent, backends, (backend) => backend.name, () => card(onOrder));
}

function card(onOrder) {
  const name = make("h3");
  const state = make("span", { class: "pill" });
  const where = make("span", { class: "where" });
  const orders = make("div", { class: "orders" });
  const reason = make("p", { class: "reason" });
  const cells = make("ul", { class: "cells" });
  const node = make("article", { class: "card backend" });
  node.append(make("header", {}, name, state, where, orders), reason, cells);
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
    keep(orders, backend.orders, (order) => order, (order) => button(order, backend.name, onOrder));
    keep(cells, backend.cells.map((cell, number) => ({ ...cell, number })), (cell) => cell.number, drawCell);
  };
  return { node, update };
}

function button(order, name, onOrder) {
  const node = make("button", { type: "button", "data-order": order, "aria-label": `${wordFor(order)} ${name}` });
  node.addEventListener("click", () => onOrder(name, order));
  return { node, update: () => say(node, wordFor(order)) };
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

// Labelled bars: waiting requests and held slots of each tenant.

import { keep, make, say, set } from "./dom.js";
import { count, plural } from "./format.js";

/** Draw the number of waiting requests of each tenant, the highest first. */
export function drawQueue(list, byTenant) {
  const rows = Object.entries(byTenant).map(([name, waiting]) => ({ name, value: waiting, text: `${count(waiting)} waiting` }));
  rows.sort((a, b) => b.value - a.value || a.name.localeCompare(b.name));
  draw(list, rows, Math.max(...rows.map((row) => row.value), 1));
}

/** Draw the number of slots that each tenant holds, with the rest of its limits. */
export function drawTenants(list, tenants, slots) {
  const rows = tenants.map(({ name, leases, limits }) => ({ name, value: leases, text: plural(leases, "slot"), left: left(limits) }));
  draw(list, rows, Math.max(slots, 1));
}

function left(limits = {}) {
  const minute = (name, what) => {
    const state = limits[`${name}_per_minute`];
    return state ? `${count(state.remaining)} of ${count(state.limit)} ${what} per minute left` : "";
  };
  const day = limits.tokens_per_day;
  const today = day ? `${count(Math.max(0, day.limit - day.used))} of ${count(day.limit)} tokens left today` : "";
  return [minute("requests", "requests"), minute("tokens", "tokens"), today].filter(Boolean).join(" · ");
}

function draw(list, rows, most) {
  keep(list, rows, (row) => row.name, () => {
    const name = make("span");
    const text = make("span");
    const fill = make("div", { class: "fill" });
    const rest = make("span", { class: "left" });
    const node = make("li", {}, make("div", { class: "label" }, name, text), make("div", { class: "track" }, fill), rest);
    const update = (row) => {
      say(name, row.name);
      set(name, "title", row.name);
      say(text, row.text);
      say(rest, row.left || "");
      fill.style.width = `${Math.min(100, (row.value / most) * 100)}%`;
    };
    return { node, update };
  });
}

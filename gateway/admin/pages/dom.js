// Creates and changes elements. Text is only set as text, so it can never become markup.

/** Create an element with attributes and children: `make("li", { class: "cell" }, "text", child)`. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Set an element's text only if it differs, because setting it would clear the user's selection. */
export function say(element, text) {
  const said = String(text);
  if (element.textContent !== said) element.textContent = said;
}

/** Show an element with this text, or hide it if the text is empty. */
export function sayOrHide(element, text) {
  element.hidden = !text;
  say(element, text || "");
}

export function set(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

const kept = new WeakMap();

/**
 * Give `parent` one child for each item, in the order of the items. A child stays the same element as long as an item
 * has its key, so that focus and hover survive. `create(item)` returns `{ node, update(item) }`.
 */
export function keep(parent, items, keyOf, create) {
  const before = kept.get(parent) || new Map();
  const now = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const child = before.get(key) || create(item);
    now.set(key, child);
    child.update(item);
  }
  kept.set(parent, now);
  for (const [key, child] of before) if (now.get(key) !== child) child.node.remove();
  let place = parent.firstChild;
  for (const { node } of now.values()) {
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
}

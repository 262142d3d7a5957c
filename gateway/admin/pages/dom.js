// Making and changing elements. Text is only ever set as text: nothing here can make markup of it.

/** `make("li", { class: "cell" }, "text", child)`: an element with attributes and children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Set an element's text if it is another one: what has not changed keeps its selection. */
export function say(element, text) {
  const said = String(text);
  if (element.textContent !== said) element.textContent = said;
}

/** Show an element with this text, or hide it where there is none. */
export function sayOrHide(element, text) {
  element.hidden = !text;
  say(element, text || "");
}

export function set(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

const kept = new WeakMap();

/**
 * Have one child of `parent` for each item, in their order. A child stays the same element for as long as there is
 * an item of its key, so that focus and hover survive. `create(item)` returns `{ node, update(item) }`.
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

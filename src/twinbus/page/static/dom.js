// Elements: making them, and changing only what differs. Text is always set as text, never parsed.

const SVG = "http://www.w3.org/2000/svg";
const ROWS = new WeakMap();

/** Return the element of index.html with this id. */
export const byId = (id) => document.getElementById(id);

/** Make an element; `text` and `on` (listeners by event) are special, the rest are attributes. */
export function el(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** Make an element of SVG. */
export function svg(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

function furnish(node, { text, on, ...attributes }, children) {
  set(node, attributes);
  if (text !== undefined) node.textContent = text;
  for (const [event, listener] of Object.entries(on ?? {})) node.addEventListener(event, listener);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set attributes that differ; null, undefined and false remove one. */
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) {
      if (node.hasAttribute(name)) node.removeAttribute(name);
    } else {
      const text = value === true ? "" : String(value);
      if (node.getAttribute(name) !== text) node.setAttribute(name, text);
    }
  }
}

/** Set the text of an element if it differs: a selection or a reading position survives. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Show or hide an element. */
export function show(node, shown) {
  if (node.hidden === Boolean(shown)) node.hidden = !shown;
}

/**
 * Make the children of `parent` match `items`, reusing the element of each key.
 * `make(item)` returns {node, …}; `update(row, item)` changes it. Elements that stay are not
 * moved without need, so focus stays where it is.
 */
export function keyed(parent, items, keyOf, make, update) {
  const old = ROWS.get(parent) ?? new Map();
  const rows = new Map();
  for (const [index, item] of items.entries()) {
    const key = keyOf(item, index);
    if (!rows.has(key)) rows.set(key, { row: old.get(key)?.row ?? make(item), item });
  }
  for (const [key, { row }] of old) if (!rows.has(key)) row.node.remove();
  const focused = document.activeElement;
  let place = parent.firstChild;
  for (const { row, item } of rows.values()) {
    update(row, item);
    if (row.node === place) place = place.nextSibling;
    else parent.insertBefore(row.node, place);
  }
  if (focused !== document.activeElement && focused?.isConnected) focused.focus();
  ROWS.set(parent, rows);
}

/** For `keyed`: rows without a name of their own are known by their place. */
export const byPlace = (item, index) => index;

/** Make a button. */
export function button(text, press, attributes = {}) {
  return el("button", { type: "button", text, on: { click: press }, ...attributes });
}

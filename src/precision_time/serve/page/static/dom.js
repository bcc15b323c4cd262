// Elements made from text and properties. Text is never read as HTML, so that no name of a job can add markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `properties` are attributes, `on` has listeners, `css` style properties (set through the CSS object
 * model, which the content security policy allows). Children are elements, text, or null for none. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function s(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "css") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** Replaces what is in an element; null stands for nothing. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
}

/** A table. `heads` are texts, or {text, left} for a column of words, or "" for one of buttons; cells are texts or
 * elements. */
export function table(caption, heads, rows, properties = {}) {
  const words = heads.map((head) => (head.left ? "text" : null));
  const top = heads.map((head) => head === "" ? h("td", {}) : h("th", { scope: "col", class: head.left ? "text" : null }, head.text ?? head));
  const body = rows.map((cells) =>
    h("tr", {}, cells.map((cell, at) =>
      at === 0 ? h("th", { scope: "row", class: words[at] }, cell) : h("td", { class: words[at] }, cell))));
  return h("table", properties, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, top)),
    h("tbody", {}, body));
}

/** A wide table in a box that scrolls by itself, also by keyboard, so that the page does not. */
export function wide(name, content) {
  return h("div", { class: "wide", role: "region", "aria-label": name, tabindex: "0" }, content);
}

let number = 0;
/** An id that no other element has. */
export function newId(word) {
  number += 1;
  return `${word}-${number}`;
}

/** Puts `text` into the status line that screen readers read, once the user has paused. */
export function speak(text) {
  clearTimeout(speak.timer);
  speak.timer = setTimeout(() => { document.getElementById("spoken").textContent = text; }, 700);
}

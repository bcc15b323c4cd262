// Controls that choose several of many: boxes for few names, chips with completion for many.

import { combobox } from "./combobox.js";
import { h, newId, put } from "./dom.js";

/** Boxes, one for each name: {element, values()}. */
export function checks(legend, names, chosen, changed) {
  const boxes = names.map((name) => {
    const id = newId("check");
    const box = h("input", { type: "checkbox", id, checked: chosen.includes(name), on: { change: changed } });
    return { name, box, element: h("span", { class: "check" }, box, h("label", { for: id }, name)) };
  });
  const element = h("fieldset", { class: "checks" }, h("legend", {}, legend), boxes.map((each) => each.element));
  return { element, values: () => boxes.filter(({ box }) => box.checked).map(({ name }) => name) };
}

/** An input with completion that adds chips: {element, values()}. */
export function chips(label, options, chosen, changed) {
  const values = [...chosen];
  const id = newId("chips");
  const list = h("ul", { class: "chips", "aria-label": label });
  const add = combobox(label, options, (text, done) => {
    const name = text.trim();
    const known = options().some((option) => option.value === name);
    if (!done || !known) return;
    add.input.value = "";
    if (values.includes(name)) return;
    values.push(name);
    show();
    changed();
  }, { id, placeholder: "add" });
  const remove = (name) => {
    values.splice(values.indexOf(name), 1);
    show();
    add.input.focus();
    changed();
  };
  function show() {
    list.hidden = values.length === 0;
    put(list, ...values.map((name) =>
      h("li", {}, name, h("button", { type: "button", "aria-label": `Remove ${name}`, on: { click: () => remove(name) } }, "×"))));
  }
  show();
  return { element: h("div", { class: "field broad" }, h("label", { for: id }, label), list, add.element), values: () => values };
}

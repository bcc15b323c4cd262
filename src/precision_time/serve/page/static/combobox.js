// An input with completion, as the ARIA pattern "editable combobox with list" describes it.

import { h, newId, put } from "./dom.js";

const MOST = 60;
const plain = (text) => text.toLowerCase().replace(/[^a-z0-9.]/g, "");

/** {input, element}. `options()` gives [{value, detail}]; `change(text, done)` is called for every change, with
 * `done` where the user chose an option. Attributes of the input are in `properties`. */
export function combobox(name, options, change, properties = {}) {
  const listId = newId("list");
  const list = h("ul", { id: listId, role: "listbox", "aria-label": `${name}: choices`, hidden: true });
  const input = h("input", {
    type: "text", role: "combobox", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": listId, ...properties,
  });
  let shown = [];
  let active = -1;

  function matching(text) {
    const parts = text.toLowerCase().split(/\s+/).map(plain).filter(Boolean);
    const fits = ({ value, detail = "" }) => parts.every((part) => plain(`${value} ${detail}`).includes(part));
    const order = (option) => (plain(option.value).startsWith(parts[0] ?? "") ? 0 : 1);
    return options().filter(fits).sort((a, b) => order(a) - order(b)).slice(0, MOST);
  }

  function open(all) {
    shown = all ? options().slice(0, 400) : matching(input.value);
    active = all ? shown.findIndex((option) => option.value === input.value) : -1;
    put(list, ...shown.map((option, at) =>
      h("li", { id: `${listId}-${at}`, role: "option", "aria-selected": "false", on: { mousedown: (event) => { event.preventDefault(); choose(at); } } },
        h("span", {}, option.value), option.detail ? h("small", {}, option.detail) : null)));
    list.hidden = shown.length === 0;
    input.setAttribute("aria-expanded", String(shown.length > 0));
    mark();
  }

  function close() {
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function mark() {
    [...list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === active)));
    if (active < 0) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", `${listId}-${active}`);
    return list.children[active].scrollIntoView({ block: "nearest" });
  }

  function choose(at) {
    input.value = shown[at].value;
    close();
    change(input.value, true);
  }

  input.addEventListener("input", () => { open(false); change(input.value, false); });
  input.addEventListener("click", () => { if (list.hidden) open(true); });
  input.addEventListener("blur", () => { close(); change(input.value, true); });
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      if (list.hidden) open(matching(input.value).length < 2);
      else active = (active + step + shown.length + (active < 0 && step < 0 ? 1 : 0)) % Math.max(1, shown.length);
      mark();
    } else if (event.key === "Enter" && !list.hidden && active >= 0) {
      event.preventDefault();
      choose(active);
    } else if (event.key === "Enter") {
      close();
      change(input.value, true);
    } else if (event.key === "Escape" && !list.hidden) {
      event.preventDefault();
      close();
    }
  });
  return { input, element: h("div", { class: "combobox" }, input, list) };
}

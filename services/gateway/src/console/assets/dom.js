// Making elements. Texts go in as text nodes only, so that a name like `<script>` is a name and nothing else.

/// An element. `props`: `class`, `text`, `on` (listeners), `data`; everything else is an attribute.
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/// The same for drawings.
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, heard] of Object.entries(value)) element.addEventListener(event, heard);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false),
  );
  return element;
}

/// Changes an attribute only when it differs, so that nothing is announced or drawn again for nothing.
export function set(element, name, value) {
  if (value === undefined || value === null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/// Replaces what an element has, unless it would be the same: `state` is compared.
export function setContent(element, state, make) {
  if (element.dataset.shown === state) return;
  element.dataset.shown = state;
  element.replaceChildren(...[make()].flat(Infinity).filter(Boolean));
}

/// Makes the children of `parent` those of `items`, in their order. An element stays that of its key, so that focus and
/// selection outlive every change.
export function sync(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const shown = items.map((item) => {
    const key = keyOf(item);
    const child = known.get(key) ?? make(item);
    known.delete(key);
    child.dataset.key = key;
    update?.(child, item);
    return child;
  });
  // First, so that nothing that stays has to move: what moves loses the focus.
  const kept = new Set(shown);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  let at = parent.firstElementChild;
  for (const child of shown) {
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
}

/// A table with columns `{label, right?, wide?, state?(row), cell(row)}`. A cell is made anew when its state, or else its
/// row, is another one. Below 720 px every row becomes a card; the roles say that it is a table still.
export function table(label, columns, rows, keyOf) {
  const classOf = ({ right, wide }) => (right ? "right" : wide ? "wide" : undefined);
  const heading = (column) => {
    const label = column.label || el("span", { class: "visually-hidden", text: "Actions" });
    return el("th", { scope: "col", role: "columnheader", class: classOf(column) }, label);
  };
  const makeCell = (column) => el("td", { role: "cell", class: classOf(column), data: { label: column.label } });
  const makeRow = () => el("tr", { role: "row" }, columns.map(makeCell));
  const showRow = (row, item) =>
    columns.forEach((column, index) => {
      const state = JSON.stringify(column.state ? column.state(item) : item);
      setContent(row.children[index], state, () => column.cell(item));
    });
  const body = el("tbody", { role: "rowgroup" });
  const head = el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, columns.map(heading)));
  const node = el("table", { class: "cards", role: "table", "aria-label": label }, head, body);
  const show = (shown) => sync(body, shown, keyOf, makeRow, showRow);
  show(rows);
  return { node, show };
}

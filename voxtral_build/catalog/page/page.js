// --- the page: rows, filters, order, and the address that keeps them -------------------------

const FILTERS = ["backend", "dtype", "scheme", "mode", "status"];
const table = byId("table");
const body = table.tBodies[0];
const form = document.querySelector(".filters");
const dialog = byId("part");
const buttons = [...table.querySelectorAll("[data-sort]")];

// The table says it all; rows are read off it once.
const columns = buttons.map((button) => ({
  key: button.dataset.sort,
  number: button.parentElement.classList.contains("number") || button.dataset.sort === "status",
}));
const headings = buttons.map((button) => ({
  unit: button.querySelector(".unit")?.textContent ?? "",
  heading: button.firstChild.textContent.trim(),
}));
const rows = [...body.rows].map((element) => {
  const figures = {};
  [...element.cells].forEach((cell, index) => {
    const { key, number } = columns[index];
    const value = cell.dataset.value;
    figures[key] = value === undefined ? null : number ? Number(value) : value;
  });
  const shown = [...element.cells].slice(3).map((cell, index) => ({
    ...headings[index + 3],
    text: cell.textContent,
  }));
  return { element, figures, shown, ...element.dataset };
});
const rowOf = new Map(rows.map((row) => [row.variant, row]));
const reference = table.dataset.werFloat32 === undefined ? null : Number(table.dataset.werFloat32);

// --- state, and the address: #<variant>?<view> ------------------------------------------------

const view = {
  part: null,
  search: "",
  filters: Object.fromEntries(FILTERS.map((axis) => [axis, new Set()])),
  sort: null,
  descending: false,
  accuracy: "kl",
};

let last = null; // query that is shown

/** The view, without the part that is open. */
function viewQuery() {
  const query = new URLSearchParams();
  for (const [axis, values] of Object.entries(view.filters)) {
    for (const value of values) query.append(axis, value);
  }
  if (view.search) query.set("name", view.search);
  if (view.sort) query.set("sort", view.descending ? `-${view.sort}` : view.sort);
  if (view.accuracy !== "kl") query.set("accuracy", view.accuracy);
  return query.size ? `?${query}` : "";
}

const address = () => `#${encodeURIComponent(view.part ?? "")}${viewQuery()}`;

/** What the address says; of that, only what this catalog has. */
function readAddress() {
  const [, name, rest] = /^#?([^?]*)\??(.*)$/s.exec(location.hash);
  try {
    view.part = decodeURIComponent(name);
  } catch {
    view.part = null; // no text
  }
  if (!rowOf.has(view.part)) view.part = null;
  const query = new URLSearchParams(rest);
  for (const axis of FILTERS) {
    const there = new Set(rows.map((row) => row[axis]));
    view.filters[axis] = new Set(query.getAll(axis).filter((value) => there.has(value)));
  }
  view.search = query.get("name") ?? "";
  const sort = query.get("sort") ?? "";
  view.descending = sort.startsWith("-");
  const key = sort.replace(/^-/, "");
  view.sort = columns.some((column) => column.key === key) ? key : null;
  view.accuracy = query.get("accuracy") === "wer" ? "wer" : "kl";
}

/** Keeps the view in the address, without a step for the back button. */
function keep() {
  last = viewQuery();
  history.replaceState(history.state, "", address());
}

// --- filters -----------------------------------------------------------------------------------

function passes(row, except) {
  return (
    row.variant.toLowerCase().includes(view.search.trim().toLowerCase()) &&
    FILTERS.every((axis) => {
      const chosen = view.filters[axis];
      return axis === except || !chosen.size || chosen.has(row[axis]);
    })
  );
}

function filter() {
  const shown = rows.filter((row) => passes(row));
  const kept = new Set(shown);
  for (const row of rows) row.element.hidden = !kept.has(row);
  byId("nothing").hidden = shown.length > 0;
  byId("count").textContent =
    shown.length === rows.length
      ? `All ${plural(rows.length, "variant")}`
      : `${decimal(shown.length)} of ${plural(rows.length, "variant")}`;
  count();
  showPicks(shown);
  for (const plot of plots) plot.show(shown, rows, view.accuracy, reference);
}

/** Beside each choice: how many it would leave, with the other groups as they are. */
function count() {
  for (const axis of FILTERS) {
    const counts = new Map();
    for (const row of rows) {
      if (passes(row, axis)) counts.set(row[axis], (counts.get(row[axis]) ?? 0) + 1);
    }
    for (const input of form.querySelectorAll(`[name="${axis}"]`)) {
      const number = counts.get(input.value) ?? 0;
      const label = input.closest("label");
      label.querySelector(".count").textContent = number;
      label.classList.toggle("none", number === 0);
    }
  }
}

/** The validated variants that are best in one thing. */
function showPicks(shown) {
  const validated = shown.filter((row) => row.status === "validated");
  const least = (key) =>
    validated
      .filter((row) => row.figures[key] != null)
      .reduce((best, row) => (best && best.figures[key] <= row.figures[key] ? best : row), null);
  const pick = (title, axis) => {
    const row = least(axis.key);
    return (
      row &&
      html(
        "li",
        html("span", { class: "pick-title" }, title),
        html(
          "a",
          { href: `#${encodeURIComponent(row.variant)}`, "data-variant": row.variant },
          row.variant,
        ),
        html("span", { class: "pick-figure" }, axis.show(row.figures[axis.key])),
      )
    );
  };
  const picks = [
    pick("Smallest", AXES.size),
    pick("Closest to float32", AXES.kl),
    // Steps of the two modes are not the same work; this is.
    pick("Fastest", { key: "rtf", show: (factor) => `${decimal(factor, 3)} of real time` }),
  ].filter(Boolean);
  byId("picks").replaceChildren(...picks);
  byId("picks").hidden = !picks.length;
}

// --- order -------------------------------------------------------------------------------------

const collator = new Intl.Collator("en", { numeric: true });

/** Puts rows in order; what was not measured stays last, whichever way. */
function sort() {
  const { sort: key, descending } = view;
  const ordered = [...rows];
  if (key) {
    const number = columns.find((column) => column.key === key).number;
    const compare = number ? (a, b) => a - b : collator.compare;
    const sign = descending ? -1 : 1;
    ordered.sort(({ figures: { [key]: a } }, { figures: { [key]: b } }) =>
      a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b),
    );
  }
  body.append(...ordered.map((row) => row.element));
  for (const button of buttons) {
    if (button.dataset.sort === key) {
      button.parentElement.setAttribute("aria-sort", descending ? "descending" : "ascending");
    } else {
      button.parentElement.removeAttribute("aria-sort");
    }
  }
}

// --- the part of a variant ---------------------------------------------------------------------

let entries = null; // read when the first part is opened

function entryOf(variant) {
  if (!entries) {
    const catalog = JSON.parse(byId("catalog").textContent);
    entries = new Map(catalog.entries.map((entry) => [entry.variant, entry]));
  }
  return entries.get(variant);
}

function showPart() {
  if (!view.part) {
    dialog.close();
    return;
  }
  byId("part-name").textContent = view.part;
  const content = byId("part-content");
  content.replaceChildren(...part(entryOf(view.part), rowOf.get(view.part)));
  content.scrollTop = 0;
  byId("previous").disabled = !neighbour(-1);
  byId("next").disabled = !neighbour(1);
  if (!dialog.open) dialog.showModal();
}

/** Of the rows that are shown, in their order. */
function neighbour(step) {
  const shown = [...body.rows].filter((element) => !element.hidden);
  const here = shown.indexOf(rowOf.get(view.part).element);
  return here < 0 ? null : shown[here + step]?.dataset.variant;
}

function open(variant) {
  view.part = variant;
  history.pushState({ opened: true }, "", address());
  showPart();
}

function go(step) {
  view.part = neighbour(step);
  keep();
  showPart();
  byId("part-name").focus();
}

dialog.addEventListener("close", () => {
  // The event comes later than the closing: by now another part may be open.
  if (!view.part || dialog.open) return;
  const row = rowOf.get(view.part);
  view.part = null;
  // As the back button would, where there is something to go back to.
  if (history.state?.opened) history.back();
  else keep();
  // The browser puts the focus back where it was; opened by an address, it was nowhere.
  const focus = document.activeElement;
  if (focus === document.body || dialog.contains(focus)) row.element.querySelector("a").focus();
});
byId("close").addEventListener("click", () => dialog.close());
byId("previous").addEventListener("click", () => go(-1));
byId("next").addEventListener("click", () => go(1));
dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());

// --- wiring ------------------------------------------------------------------------------------

const marks = new Marks(rows);
const plots = [...document.querySelectorAll("[data-plot]")].map(
  (element) => new Plot(element, AXES[element.dataset.plot], marks),
);
byId("marks").append(...marks.legend());

function readForm() {
  for (const axis of FILTERS) {
    const checked = form.querySelectorAll(`[name="${axis}"]:checked`);
    view.filters[axis] = new Set([...checked].map((input) => input.value));
  }
  view.search = form.elements.q.value;
}

function fillForm() {
  for (const input of form.querySelectorAll("[type=checkbox]")) {
    input.checked = view.filters[input.name].has(input.value);
  }
  form.elements.q.value = view.search;
  for (const input of document.getElementsByName("accuracy")) {
    input.checked = input.value === view.accuracy;
  }
}

function show() {
  readAddress();
  // A part that opens or closes leaves all else alone, and the focus where it is.
  if (viewQuery() !== last) {
    fillForm();
    sort();
    filter();
    last = viewQuery();
  }
  showPart();
}

form.addEventListener("input", () => {
  readForm();
  filter();
  keep();
});
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", (event) => {
  event.preventDefault();
  reset();
});
byId("reset-too").addEventListener("click", () => {
  reset();
  byId("search").focus();
});

function reset() {
  for (const axis of FILTERS) view.filters[axis].clear();
  Object.assign(view, { search: "", sort: null, descending: false });
  fillForm();
  sort();
  filter();
  keep();
}

document.querySelector(".switch").addEventListener("change", (event) => {
  view.accuracy = event.target.value;
  for (const plot of plots) plot.show(plot.rows, rows, view.accuracy, reference);
  keep();
});

for (const button of buttons) {
  button.disabled = false;
  button.addEventListener("click", () => {
    const key = button.dataset.sort;
    view.descending = view.sort === key && !view.descending;
    view.sort = key;
    sort();
    keep();
  });
}

// Links to parts keep the view; those to a new tab go as they are.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-variant], tbody th a");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey)
    return;
  event.preventDefault();
  open(link.dataset.variant ?? link.closest("tr").dataset.variant);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("variants").focus();
});
addEventListener("hashchange", show);

// Where all columns fit, headings stay in sight as the page scrolls; else the table has a
// container to scroll in.
const wrap = document.querySelector(".table-wrap");
new ResizeObserver(() => {
  wrap.classList.toggle("fits", table.offsetWidth <= wrap.clientWidth);
}).observe(wrap);

byId("controls").hidden = byId("plots").hidden = false;
show();

// On a phone filters wait behind a click, unless some are set.
const narrow = matchMedia("(max-width: 40rem)");
const fold = () => (byId("choose").open = !narrow.matches || viewQuery() !== "");
narrow.addEventListener("change", fold);
fold();

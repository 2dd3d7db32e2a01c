// Elements, made from text and never from markup: names and transcripts are other people's.

const byId = (id) => document.getElementById(id);

function fill(element, parts) {
  const attributes = parts[0]?.constructor === Object ? parts.shift() : {};
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...parts.flat(Infinity).filter((part) => part != null && part !== false));
  return element;
}

/** An HTML element of attributes, if any, and of elements, texts, lists of them, or nothing. */
const html = (tag, ...parts) => fill(document.createElement(tag), parts);

/** An SVG element. */
const svg = (tag, ...parts) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), parts);

// --- figures as text ------------------------------------------------------------------------

const MISSING = "–";

const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

/** With a fixed number of digits behind the point, and thousands apart. */
const decimal = (value, digits = 0) =>
  value == null
    ? MISSING
    : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** Four digits at most; very large and very small ones as 1.9e-4. */
function figure(value) {
  if (value == null) return MISSING;
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) {
    return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
  }
  return String(Number(value.toPrecision(4)));
}

const percent = (share, digits = 1) =>
  share == null ? MISSING : `${decimal(100 * share, digits)} %`;
const megabytes = (bytes, digits = 1) => `${decimal(bytes / 1e6, digits)} MB`;

/** Bytes in a unit that leaves few digits. */
function size(bytes) {
  if (bytes >= 1e9) return `${decimal(bytes / 1e9, 2)} GB`;
  if (bytes >= 1e6) return megabytes(bytes);
  return bytes >= 1e3 ? `${decimal(bytes / 1e3, 1)} kB` : `${bytes} B`;
}

// --- parts of a page -------------------------------------------------------------------------

const section = (title, ...children) => html("section", html("h3", title), children);

const code = (text) => html("code", text);

/** Pairs of a name and what it is; those without a value are left out. */
const facts = (pairs, attributes = {}) =>
  html(
    "dl",
    { class: "pairs", ...attributes },
    pairs
      .filter(([, value]) => value != null)
      .map(([name, value]) => html("div", html("dt", name), html("dd", value))),
  );

/** A table in a container of its own, so that it never widens the page. */
function grid(label, headings, rows, numbers = []) {
  const align = (index) => (numbers.includes(index) ? { class: "number" } : {});
  return html(
    "div",
    { class: "grid-wrap", role: "region", "aria-label": label, tabindex: 0 },
    html(
      "table",
      html("caption", { class: "visually-hidden" }, label),
      html(
        "thead",
        html(
          "tr",
          headings.map((text, index) => html("th", { scope: "col", ...align(index) }, text)),
        ),
      ),
      html(
        "tbody",
        rows.map((cells) =>
          html(
            "tr",
            cells.map((cell, index) =>
              index === 0 ? html("th", { scope: "row" }, cell) : html("td", align(index), cell),
            ),
          ),
        ),
      ),
    ),
  );
}

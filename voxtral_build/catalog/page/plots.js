// --- plots: a point is a variant ------------------------------------------------------------

const LEAST = 1e-9; // of a logarithmic axis; what is less, and zero, lies on its edge
const COLORS = 8; // that style.css names
const SHAPES = [
  "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z", // circle
  "M-4-4h8v8h-8z", // square
  "M0-5.2L5 3.9H-5z", // triangle
  "M0-5.6L5.6 0L0 5.6L-5.6 0z", // diamond
  "M0 5.2L5-3.9H-5z", // triangle, down
  "M-1.8-5h3.6v3.2H5v3.6H1.8V5h-3.6V1.8H-5v-3.6h3.2z", // cross
  "M0-5.4L4.7-2.7V2.7L0 5.4L-4.7 2.7V-2.7z", // hexagon
];
const MARGIN = { top: 14, right: 16, bottom: 44, left: 58 };
const EDGE = 26; // what the edge takes of a logarithmic axis, in px

/** By the columns' keys: title and label of an axis, name and look of one figure. */
const AXES = {
  size: {
    key: "size",
    title: "Model size",
    unit: "MB",
    scale: 1e-6,
    name: "model",
    show: (value) => megabytes(value),
  },
  step: {
    key: "step",
    title: "Median step",
    unit: "ms",
    scale: 1,
    name: "step",
    show: (value) => `${decimal(value, 1)} ms`,
  },
  kl: {
    key: "kl",
    title: "KL divergence from float32",
    unit: "nats",
    scale: 1,
    logarithmic: true,
    name: "KL divergence",
    show: (value) => `${figure(value)} nats`,
  },
  wer: {
    key: "wer",
    title: "Word error rate",
    unit: "%",
    scale: 100,
    name: "WER",
    show: (value) => percent(value),
  },
};

/** Steps of 1, 2 or 5 times a power of ten, about `count` of them. */
function niceStep(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find((factor) => factor * power >= rough * 0.999) ?? 10);
}

/** From values to pixels `from`..`to`, with ticks: evenly, from zero where `fromZero`. */
function linearScale(values, from, to, count, fromZero) {
  let [low, high] = [fromZero ? 0 : Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
  const step = niceStep(high - low, count);
  const [first, last] = [Math.floor(low / step + 1e-6), Math.ceil(high / step - 1e-6)];
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const at = (value) => from + ((value / step - first) / (last - first)) * (to - from);
  const ticks = [];
  for (let index = first; index <= last; index++) {
    ticks.push({ at: at(index * step), text: decimal(index * step, digits) });
  }
  return { at, ticks };
}

/** The same by orders of magnitude; values of `LEAST` and below lie on an edge of their own. */
function logarithmicScale(values, from, to, count) {
  const above = values.filter((value) => value > LEAST).map(Math.log10);
  const edge = above.length < values.length;
  if (edge) from += Math.sign(to - from) * EDGE;
  const low = above.length ? Math.floor(Math.min(...above) + 1e-9) : Math.log10(LEAST);
  const high = Math.max(low + 1, above.length ? Math.ceil(Math.max(...above) - 1e-9) : low + 1);
  const place = (power) => from + ((power - low) / (high - low)) * (to - from);
  const at = (value) =>
    value > LEAST ? place(Math.log10(value)) : from - Math.sign(to - from) * EDGE;
  const every = Math.ceil((high - low) / count);
  const ticks = edge ? [{ at: at(0), text: "≤ 1e-9", edge: true }] : [];
  for (let power = low; power <= high; power += every) {
    // Few orders of magnitude leave room between them.
    for (const factor of high - low <= 2 && power < high ? [1, 2, 5] : [1]) {
      const value = factor * 10 ** power;
      const text = power >= -2 && power < 5 ? figure(value) : `${factor}e${power}`;
      ticks.push({ at: place(Math.log10(value)), text });
    }
  }
  return { at, ticks };
}

function makeScale(axis, values, from, to, count, fromZero) {
  const scaled = values.map((value) => value * axis.scale);
  const spread = Math.max(...scaled) / Math.min(...scaled);
  // A variant that takes fifty times as long as another would press all others together.
  const make = axis.logarithmic || (fromZero && spread > 50) ? logarithmicScale : linearScale;
  const { at, ticks } = make(scaled, from, to, count, fromZero);
  return { at: (value) => at(value * axis.scale), ticks };
}

/** Of those that none other equals in one figure and beats in the other, by x. */
function paretoBest(points) {
  const best = [];
  for (const point of [...points].sort((a, b) => a.x - b.x || a.y - b.y)) {
    if (!best.length || point.y < best.at(-1).y) best.push(point);
  }
  return best;
}

/** How a backend and a mode look; the same in both plots and in what explains them. */
class Marks {
  constructor(rows) {
    this.backends = [...new Set(rows.map((row) => row.backend))];
    this.modes = [...new Set(rows.map((row) => row.mode))];
  }

  /** The mark itself; the first mode is hollow and larger, to be seen around the others. */
  mark(backend, mode) {
    const index = this.backends.indexOf(backend);
    const hollow = mode === this.modes[0] && this.modes.length > 1;
    return svg("path", {
      class: hollow ? "mark hollow" : "mark",
      d: SHAPES[index % SHAPES.length],
      transform: hollow ? "scale(1.35)" : "scale(1)",
      "data-color": index % COLORS,
    });
  }

  sample(text, ...marks) {
    const picture = svg("svg", { viewBox: "-9 -9 18 18", "aria-hidden": "true" }, marks);
    return html("li", picture, text);
  }

  legend() {
    const backends = this.backends.map((backend) =>
      this.sample(backend, this.mark(backend, this.modes.at(-1))),
    );
    const plain = (mode) => {
      const mark = this.mark(this.backends[0], mode);
      mark.removeAttribute("data-color");
      return mark;
    };
    const modes =
      this.modes.length > 1 ? this.modes.map((mode) => this.sample(mode, plain(mode))) : [];
    return [...backends, ...modes, this.sample("failed a gate", strike())];
  }
}

const strike = () => svg("path", { class: "strike", d: "M-8 8L8-8" });

/** One plot, drawn for the width that it has. */
class Plot {
  constructor(container, x, marks) {
    this.canvas = container.querySelector(".canvas");
    this.caption = container.querySelector("figcaption");
    this.note = container.querySelector(".note");
    this.tooltip = this.canvas.appendChild(html("div", { class: "tooltip", hidden: true }));
    [this.x, this.marks] = [x, marks];
    new ResizeObserver(() => this.canvas.clientWidth !== this.width && this.draw()).observe(
      this.canvas,
    );
    this.listen();
  }

  /** Plot `rows`, on axes that hold `all`, so that filters move no point. */
  show(rows, all, accuracy, reference) {
    Object.assign(this, { rows, all, y: AXES[accuracy], reference });
    this.draw();
  }

  pointsOf(rows) {
    const { x, y } = this;
    return rows
      .filter((row) => row.figures[x.key] != null && row.figures[y.key] != null)
      .map((row) => ({ row, x: row.figures[x.key], y: row.figures[y.key] }));
  }

  draw() {
    if (!this.rows) return;
    const { x, y } = this;
    this.width = this.canvas.clientWidth;
    const width = Math.max(this.width, 240);
    const height = Math.round(Math.min(440, Math.max(300, width * 0.66)));
    this.tooltip.hidden = true;
    this.canvas.querySelector("svg")?.remove();
    this.caption.textContent = `${x.title} against ${y.title.replace("Word", "word")}`;
    const all = this.pointsOf(this.all);
    this.points = this.pointsOf(this.rows);
    const without = this.rows.length - this.points.length;
    this.note.textContent = without ? `${plural(without, "variant")} without these figures.` : "";
    if (!all.length) return;

    const right = width - MARGIN.right;
    const bottom = height - MARGIN.bottom;
    const inner = right - MARGIN.left;
    const across = makeScale(
      x,
      all.map((p) => p.x),
      MARGIN.left,
      right,
      inner / 80,
      true,
    );
    const reference = y.key === "wer" ? this.reference : null;
    const heights = [...all.map((p) => p.y), ...(reference == null ? [] : [reference])];
    const up = makeScale(y, heights, bottom, MARGIN.top, 5, false);
    for (const point of this.points) {
      [point.left, point.top] = [across.at(point.x), up.at(point.y)];
    }
    const label = `${this.caption.textContent}: ${plural(this.points.length, "variant")}`;
    this.canvas.prepend(
      svg(
        "svg",
        { width, height, role: "group", "aria-label": label },
        this.axes(across, up, { left: MARGIN.left, right, bottom, height }),
        reference == null ? null : this.referenceLine(up.at(reference), right),
        this.bestLines(),
        this.marksOf(this.points),
      ),
    );
  }

  axes(across, up, { left, right, bottom, height }) {
    const { x, y } = this;
    return svg(
      "g",
      { "aria-hidden": "true" },
      up.ticks.map((tick) => [
        svg("line", {
          class: tick.edge ? "grid edge" : "grid",
          x1: left,
          x2: right,
          y1: tick.at,
          y2: tick.at,
        }),
        svg(
          "text",
          { class: "tick", x: left - 8, y: tick.at, dy: "0.32em", "text-anchor": "end" },
          tick.text,
        ),
      ]),
      across.ticks.map((tick) => [
        svg("line", { class: "grid", x1: tick.at, x2: tick.at, y1: MARGIN.top, y2: bottom }),
        svg(
          "text",
          { class: "tick", x: tick.at, y: bottom + 17, "text-anchor": "middle" },
          tick.text,
        ),
      ]),
      svg(
        "text",
        { class: "axis", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" },
        `${x.title}, ${x.unit}`,
      ),
      svg(
        "text",
        {
          class: "axis",
          "text-anchor": "middle",
          transform: `translate(12 ${(MARGIN.top + bottom) / 2}) rotate(-90)`,
        },
        `${y.title}, ${y.unit}`,
      ),
    );
  }

  referenceLine(top, right) {
    return svg(
      "g",
      { "aria-hidden": "true" },
      svg("line", { class: "reference", x1: MARGIN.left, x2: right, y1: top, y2: top }),
      svg(
        "text",
        { class: "tick", x: right, y: top - 5, "text-anchor": "end" },
        "model in float32",
      ),
    );
  }

  bestLines() {
    return this.marks.modes.map((mode) => {
      const points = this.points.filter(
        ({ row }) => row.mode === mode && row.status === "validated",
      );
      const best = paretoBest(points);
      // Between two points nothing is promised but the worse of each figure.
      const path = best.map((point, index) =>
        index ? `H${point.left}V${point.top}` : `M${point.left} ${point.top}`,
      );
      return svg("path", {
        class: "best",
        "data-mode": this.marks.modes.indexOf(mode),
        d: path.join(""),
      });
    });
  }

  marksOf(points) {
    const inOrder = [...points].sort((a, b) => a.x - b.x || b.y - a.y);
    this.inOrder = inOrder;
    return svg(
      "g",
      inOrder.map((point, index) => {
        const { row } = point;
        point.link = svg(
          "a",
          {
            href: `#${encodeURIComponent(row.variant)}`,
            class: "point",
            tabindex: index ? -1 : 0,
            "data-variant": row.variant,
            "aria-label": this.describe(point),
            transform: `translate(${point.left} ${point.top})`,
          },
          svg("circle", { class: "target", r: 11 }),
          this.marks.mark(row.backend, row.mode),
          row.status === "failed" && strike(),
        );
        return point.link;
      }),
    );
  }

  describe({ row, x, y }) {
    const failed = row.status === "failed" ? ", failed" : "";
    const figures = [`${this.x.name} ${this.x.show(x)}`, `${this.y.name} ${this.y.show(y)}`];
    return `${row.variant}${failed}: ${figures.join(", ")}`;
  }

  listen() {
    const pointOf = (event) => {
      const link = event.target.closest?.(".point");
      return link && this.points.find((point) => point.link === link);
    };
    const tell = (event) => {
      const point = pointOf(event);
      if (point) this.tell(point);
    };
    this.canvas.addEventListener("pointerover", tell);
    this.canvas.addEventListener("focusin", tell);
    const quiet = () => (this.tooltip.hidden = true);
    this.canvas.addEventListener("pointerleave", quiet);
    this.canvas.addEventListener("focusout", quiet);
    this.canvas.addEventListener("keydown", (event) => {
      if (event.key === "Escape") quiet();
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const point = pointOf(event);
      if (!point || !step) return;
      event.preventDefault();
      const next = this.inOrder[this.inOrder.indexOf(point) + step];
      if (!next) return;
      // One stop of the Tab key for the whole plot.
      point.link.setAttribute("tabindex", -1);
      next.link.setAttribute("tabindex", 0);
      next.link.focus();
    });
  }

  /** The tooltip of a point, and of all that lie under it. */
  tell(point) {
    const near = (other) => Math.hypot(other.left - point.left, other.top - point.top) < 7;
    const here = [point, ...this.points.filter((other) => other !== point && near(other))];
    const lines = here.slice(0, 5).map((each) => [
      html("strong", each.row.variant),
      html(
        "span",
        this.describe(each)
          .slice(each.row.variant.length)
          .replace(/^, |^: /, ""),
      ),
    ]);
    if (here.length > 5) lines.push(html("span", `and ${here.length - 5} more here`));
    this.tooltip.replaceChildren(...lines.flat());
    this.tooltip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.tooltip;
    const left = Math.max(0, Math.min(point.left - width / 2, this.canvas.clientWidth - width));
    const above = point.top - height - 14;
    this.tooltip.style.setProperty("left", `${left}px`);
    this.tooltip.style.setProperty("top", `${above < -40 ? point.top + 14 : above}px`);
  }
}

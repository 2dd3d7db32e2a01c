// --- the part of one variant: its evidence, its provenance, and all of it together -----------

// --- evidence ----------------------------------------------------------------------------------

function bound({ min, max }) {
  if (min == null) return max == null ? "" : `at most ${figure(max)}`;
  return max == null ? `at least ${figure(min)}` : `${figure(min)} to ${figure(max)}`;
}

/** JSON has no NaN: a bound without a figure is what is left of one. */
function gateFigure(gate) {
  const missing = bound(gate) ? "not a number" : "";
  return [gate.figure == null ? missing : figure(gate.figure), gate.detail]
    .filter(Boolean)
    .join(", ");
}

function gates(label, outcomes) {
  return grid(
    label,
    ["Gate", "Result", "Figure", "Bound", "Why"],
    outcomes.map((gate) => [
      code(gate.gate),
      html(
        "span",
        { class: "status", "data-status": gate.passed ? "validated" : "failed" },
        gate.passed ? "passed" : "failed",
      ),
      gateFigure(gate),
      html("span", { class: "nowrap" }, bound(gate)),
      html("span", { class: "why" }, gate.reason),
    ]),
  );
}

const counts = (of) =>
  Object.entries(of)
    .map(([name, count]) => `${decimal(count)} × ${name}`)
    .join(", ") || "none";

const bits = (bytes, weights) => (weights ? decimal((8 * bytes) / weights, 2) : MISSING);

/** How often a stream's ring of keys and values was filled. */
const rings = (positions, slots) => (slots ? ` (${decimal(positions / slots, 1)} rings)` : "");

function methods(report) {
  const all = Object.entries(report.methods);
  const made = grid(
    "Methods of the program",
    ["Method", "Delegates", "Linears outside", "Bits per weight", "Promised", "Planned memory"],
    all.map(([name, method]) => [
      code(name),
      counts(method.delegates),
      decimal(method.undelegated_linears),
      bits(method.weight_bytes, method.weights),
      bits(method.promised_weight_bytes, method.weights),
      size(method.planned_bytes),
    ]),
    [2, 3, 4, 5],
  );
  const compared = all.filter(([, method]) => method.parity);
  const parity = grid(
    "Outputs against eager PyTorch with the same quantization",
    [
      "Method",
      "Positions",
      "Largest difference",
      "Largest output",
      "Cosine",
      "Top-1",
      "KL, nats",
      "Noise ratio",
      "Draw ratio",
    ],
    compared.map(([name, { parity: p, positions, ring_slots: slots }]) => [
      code(name),
      positions == null ? MISSING : decimal(positions) + rings(positions, slots),
      figure(p.max_abs_difference),
      figure(p.max_abs_output),
      p.cosine == null ? MISSING : p.cosine.toFixed(6),
      percent(p.top1_agreement, 2),
      figure(p.divergence),
      figure(p.noise_ratio),
      figure(p.draw_ratio),
    ]),
    [1, 2, 3, 4, 5, 6, 7, 8],
  );
  const operators = all.map(([name, method]) => [code(name), counts(method.operators)]);
  return [
    section(
      "Methods",
      made,
      html("details", html("summary", "Operators outside of delegates"), facts(operators)),
    ),
    compared.length > 0 &&
      section(
        "Parity with eager",
        parity,
        html(
          "p",
          { class: "note" },
          "Noise ratio: what rounding activations costs here, over what it costs in eager. ",
          "Draw ratio: distance from eager, over what eager’s rounding costs.",
        ),
      ),
  ];
}

function speech(report) {
  const { speech: of, against_float32: against } = report;
  const pairs = [
    ["Top-1", against && percent(against.top1_agreement, 2)],
    ["KL divergence, nats", against && figure(against.divergence)],
    ["Cosine of audio embeddings", against && figure(against.audio_cosine)],
    ["Tokens in common, decoding freely", against && percent(against.token_agreement, 2)],
    ["Tokens in common with eager", of && percent(of.token_agreement, 2)],
    [
      "Preprocessor, largest difference",
      report.preprocessor_difference != null && figure(report.preprocessor_difference),
    ],
    ["Written", of && marked(of.text_float32, of.text).text],
  ];
  return section(
    "Against the model in float32",
    facts(pairs.filter(([, value]) => value !== false)),
    of &&
      html(
        "p",
        { class: "note" },
        `Over ${decimal(of.audio_s, 1)} s of speech. In what is `,
        "written, words that the model in float32 wrote differently are marked.",
      ),
  );
}

function machineText(machine) {
  return (
    `${machine.processor || machine.machine}, ${plural(machine.cores, "core")}, ` +
    `${decimal(machine.memory_bytes / 2 ** 30)} GiB of memory ` +
    `(${machine.system}, ${machine.machine})`
  );
}

function speed(report) {
  const { speed: of } = report;
  if (!of) return null;
  return section(
    "Speed and memory",
    facts([
      ["Load", `${decimal(of.load_s, 2)} s`],
      ["To the first token", `${decimal(of.prefill_s, 2)} s`],
      ["Step, median", `${decimal(of.step_ms_median, 2)} ms`],
      ["Step, 95th percentile", `${decimal(of.step_ms_p95, 2)} ms, of ${plural(of.steps, "step")}`],
      [
        "Real-time factor",
        `${figure(of.real_time_factor)}, over ${decimal(of.audio_s, 1)} s of audio`,
      ],
      [
        "Peak memory",
        `${megabytes(of.peak_rss_bytes, 0)}, of which ` +
          `${megabytes(of.libraries_rss_bytes, 0)} before it was loaded`,
      ],
      ["Machine", machineText(of.machine)],
    ]),
  );
}

// --- provenance --------------------------------------------------------------------------------

const files = (label, of) =>
  grid(
    label,
    ["File", "Size", "SHA-256"],
    Object.entries(of).map(([name, file]) => [
      code(name),
      size(file.bytes),
      html("code", { class: "hash" }, file.sha256),
    ]),
    [1],
  );

function provenance(entry) {
  const { provenance: of } = entry;
  const parts = [];
  if (Object.keys(entry.files).length) parts.push(section("Files", files("Files", entry.files)));
  if (!of) return parts;
  const asText = (value) =>
    value === null ? "default" : typeof value === "string" ? value : JSON.stringify(value);
  const left = Object.entries(of.left_as_is)
    .filter(([, layers]) => layers.length)
    .map(([component, layers]) => `${component}: ${layers.join(", ")}`);
  parts.push(
    section(
      "Made from",
      facts([
        ["Checkpoint", of.checkpoint.name ?? "known by its hashes alone"],
        ["Revision", of.checkpoint.revision],
        [
          "Commit",
          of.source && [code(of.source.commit), of.source.modified ? ", with modified files" : ""],
        ],
        ["Linked on", Object.values(of.host).join(", ")],
        [
          "Settings",
          Object.entries(of.settings)
            .map(([name, value]) => `${name} ${asText(value)}`)
            .join(", "),
        ],
        ["Not quantized", left.length ? left.join("; ") : null],
        [
          "Versions",
          Object.entries(of.versions)
            .map(([name, version]) => `${name} ${version}`)
            .join(", "),
        ],
        ["SHA-256 of manifest.json", html("code", { class: "hash" }, of.manifest_sha256)],
      ]),
      html("h4", "Checkpoint"),
      files("Files of the checkpoint", of.checkpoint.files),
      html("h4", "Quantized weights and units"),
      files("Quantized weights and units", of.dependencies),
    ),
  );
  return parts;
}

// --- all of it ---------------------------------------------------------------------------------

function lead(entry) {
  const failed = entry.report?.gates.filter((gate) => !gate.passed) ?? [];
  const host =
    entry.host === "any"
      ? "Any host can build it."
      : `It can only be built on a host with ${entry.host}.`;
  switch (entry.status) {
    case "failed":
      return section(
        `Failed ${plural(failed.length, "gate")}`,
        gates("Failed gates", failed),
        html("p", { class: "note" }, "It is not published. What was measured of it follows below."),
      );
    case "inspected":
      return section(
        "Read back, not run",
        html(
          "p",
          `It was not run: ${entry.report.not_run}. What was written was read back and held against `,
          "the graph and the weights that it was lowered from.",
        ),
      );
    case "built":
      return section(
        "No report yet",
        html("p", "There is a model, but it has not been validated."),
        snippet("Validate it", buildCommand(entry)),
      );
    case "not built":
      return section("Not built", html("p", host), snippet("Build it", buildCommand(entry)));
    default:
      return null;
  }
}

/** Everything there is to say of one variant; `row` has its figures as the table shows them. */
function part(entry, row) {
  const { report } = entry;
  const model = entry.files["model.pte"];
  const components = ["encoder", "decoder", "embedding"];
  return [
    html(
      "p",
      { class: "part-line" },
      html("span", { class: "status", "data-status": entry.status }, entry.status),
      ` ${entry.backend}, ${entry.dtype}, scheme ${entry.scheme}, ${entry.mode}. `,
      `Quantization: ${components.map((name) => `${name} ${entry[name]}`).join(", ")}.`,
    ),
    model &&
      html(
        "dl",
        { class: "highlights" },
        row.shown.map(({ heading, unit, text }) =>
          html(
            "div",
            html("dt", heading, " ", html("span", { class: "unit" }, unit)),
            html("dd", text),
          ),
        ),
      ),
    lead(entry),
    model && use(entry),
    report && [
      section("Gates", gates("All gates", report.gates)),
      speech(report),
      words(report),
      speed(report),
      methods(report),
    ],
    provenance(entry),
  ]
    .flat(Infinity)
    .filter(Boolean);
}

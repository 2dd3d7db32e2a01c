// --- words: what was said, and what was written instead --------------------------------------

/** Words as they are compared: without case and punctuation. */
const plainWords = (text) =>
  text
    .normalize("NFKC")
    .toLowerCase()
    .replaceAll("’", "'")
    .replace(/[^\p{L}\p{N}\s']/gu, " ")
    .split(/\s+/)
    .filter(Boolean);

/** The fewest changes from one list of words to the other: [kind, spoken, written], in order. */
function differences(spoken, written) {
  const [rows, columns] = [spoken.length + 1, written.length + 1];
  const cost = Array.from({ length: rows }, () => new Uint16Array(columns));
  for (let j = 0; j < columns; j++) cost[0][j] = j;
  for (let i = 1; i < rows; i++) {
    cost[i][0] = i;
    for (let j = 1; j < columns; j++) {
      const same = spoken[i - 1] === written[j - 1] ? 0 : 1;
      cost[i][j] = Math.min(cost[i - 1][j - 1] + same, cost[i - 1][j] + 1, cost[i][j - 1] + 1);
    }
  }
  const changes = [];
  for (let i = rows - 1, j = columns - 1; i || j;) {
    const same = i && j && spoken[i - 1] === written[j - 1] ? 0 : 1;
    if (i && j && cost[i][j] === cost[i - 1][j - 1] + same) {
      changes.push([same ? "changed" : "same", spoken[--i], written[--j]]);
    } else if (i && cost[i][j] === cost[i - 1][j] + 1) {
      changes.push(["left out", spoken[--i], null]);
    } else {
      changes.push(["added", null, written[--j]]);
    }
  }
  return changes.reverse();
}

const MOST_WORDS = 2000; // of a recording whose words are compared: the time grows by the square

/** A transcript with what was said struck out before what was written instead. */
function marked(spoken, written) {
  const [said, wrote] = [plainWords(spoken), plainWords(written)];
  if (Math.max(said.length, wrote.length) > MOST_WORDS) return { errors: null, text: [written] };
  const changes = differences(said, wrote);
  const hidden = (text) => html("span", { class: "visually-hidden" }, text);
  const text = changes.flatMap(([kind, before, after]) =>
    kind === "same"
      ? [before, " "]
      : [
          before && html("del", hidden("spoken: "), before),
          before && " ",
          after && html("ins", hidden("written: "), after),
          after && " ",
        ],
  );
  return { errors: changes.filter(([kind]) => kind !== "same").length, said: said.length, text };
}

function words(report) {
  const { words: of } = report;
  if (!of) return null;
  const clips = Object.entries(of.clips).map(([name, clip]) => {
    const { errors, said, text } = marked(clip.spoken, clip.written);
    const float32 = marked(clip.spoken, clip.written_float32);
    const verdict =
      errors == null ? "" : errors ? `${errors} of ${plural(said, "word")}` : "as spoken";
    const item = html(
      "li",
      { class: errors ? "wrong" : "" },
      html("div", { class: "clip-head" }, html("h4", name), html("span", verdict)),
      html("p", text),
      clip.written_float32 === clip.written
        ? null
        : html("p", { class: "note" }, "Model in float32: ", float32.text),
    );
    return { errors, item };
  });
  const right = clips.filter(({ errors }) => errors === 0).map(({ item }) => item);
  const others = clips.filter(({ errors }) => errors !== 0).map(({ item }) => item);
  const apart = [
    [of.substitutions, "substituted"],
    [of.deletions, "left out"],
    [of.insertions, "added"],
  ]
    .filter(([count]) => count)
    .map(([count, kind]) => `${count} ${kind}`)
    .join(", ");
  return section(
    "Words",
    html(
      "p",
      `Word error rate ${percent(of.rate)}, that of the model in float32 `,
      `${percent(of.rate_float32)}. `,
      `Of ${plural(of.spoken, "word")} spoken: ${apart || "no errors"}.`,
    ),
    html(
      "p",
      { class: "note" },
      html("del", "spoken"),
      " ",
      html("ins", "written instead"),
      ". Case and punctuation do not count.",
    ),
    others.length > 0 && html("ul", { class: "clips" }, others),
    right.length > 0 &&
      html(
        "details",
        html("summary", `${plural(right.length, "recording")} written as spoken`),
        html("ul", { class: "clips" }, right),
      ),
  );
}

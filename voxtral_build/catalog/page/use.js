// --- how a variant is used: code to copy ------------------------------------------------------

/** A word of a shell's command, in quotes where it needs them. */
const word = (text) => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

/** Of a page that lies in a repository on the Hub: which, and what can be pulled from there. */
const { repository, published } = document.body.dataset;
const isPublished = (entry) => Boolean(published?.split(" ").includes(entry.variant));

const built = (entry) => `artifacts/${entry.variant}`;
/** Where a variant lies: as it was pulled, or as it was built. */
const folder = (entry) => (isPublished(entry) ? entry.variant : built(entry));

function pythonUse(entry) {
  const streaming = entry.mode === "streaming";
  const session = streaming ? "StreamingSession" : "OfflineSession";
  const start = `from pathlib import Path

from voxtral_build import sound
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.session import ${session}
${streaming ? "from voxtral_build.text import TextAssembly\n" : ""}
artifact = Artifact.load(Path(${JSON.stringify(folder(entry))}))
samples = sound.read(Path("speech.wav"), artifact.sample_rate).samples
session = ${session}(artifact)
`;
  return streaming
    ? `${start}text = TextAssembly()


def write(tokens):
    for token in tokens:
        print(text.add(artifact.vocabulary.piece(token.id)), end="", flush=True)


for begin in range(0, len(samples), artifact.step):  # pieces of any length, as they come
    write(session.feed_audio(samples[begin : begin + artifact.step]))
write(session.flush())
print(text.finish())
`
    : `${start}tokens = session.transcribe(samples)
print(artifact.vocabulary.text(token.id for token in tokens))
`;
}

function runnerUse(entry) {
  const path = (name) => word(`${folder(entry)}/${name}`);
  const data = Object.keys(entry.files).find((name) => name.endsWith(".ptd"));
  return [
    "voxtral_realtime_runner",
    `--model_path ${path("model.pte")}`,
    data && `--data_path ${path(data)}`,
    `--tokenizer_path ${path("tekken.json")}`,
    `--preprocessor_path ${path("preprocessor.pte")}`,
    "--audio_path speech.wav",
    entry.mode === "streaming" && "--streaming",
  ]
    .filter(Boolean)
    .join(" \\\n  ");
}

/** Code with a button that copies it. */
function snippet(title, text, note) {
  const button = html(
    "button",
    { type: "button", class: "copy", "aria-label": `Copy: ${title}` },
    "Copy",
  );
  const block = html("pre", { tabindex: 0, role: "region", "aria-label": title }, code(text));
  button.addEventListener("click", async () => {
    const done = await copy(text, block);
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    byId("copied").textContent = done ? `Copied: ${title}` : `${title} is selected`;
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return html(
    "div",
    { class: "snippet" },
    html("div", { class: "snippet-head" }, html("h4", title), button),
    block,
    note && html("p", { class: "note" }, note),
  );
}

/** Into the clipboard; where the browser forbids that, select it and say so. */
async function copy(text, block) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(block);
    return document.execCommand("copy");
  }
}

function use(entry) {
  const live = entry.mode === "streaming" ? ", and --stream writes while it is spoken" : "";
  return section(
    "Use",
    isPublished(entry) &&
      snippet(
        "Download",
        `voxtral-build pull ${word(repository)} ${word(entry.variant)}\n`,
        "Every file is held against the variant’s manifest.",
      ),
    snippet(
      "Command line",
      `voxtral-build transcribe ${word(folder(entry))} speech.wav\n`,
      `Takes any sound file; --format srt makes subtitles${live}.`,
    ),
    snippet("Python", pythonUse(entry)),
    snippet(
      "C++, ExecuTorch’s runner",
      `${runnerUse(entry)}\n`,
      "Takes WAV, 16 kHz, mono. It decodes without the silence and the prompt that the model " +
        "was trained with, so its text may differ.",
    ),
  );
}

const buildCommand = (entry) => `snakemake ${word(`${built(entry)}/report.json`)}\n`;
